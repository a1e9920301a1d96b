"""`veen policy`: revocations and primaries of a realm, and the hubs that enforce them (docs/policy.md)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.label.realm import MAKE_KEYS, AdminRealm, realm_options
from veen.cli.shared.authority import read_token, token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import hubs_of
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.overlay_commands import HEX32
from veen.cli.shared.values import SIZE, SPAN
from veen.overlays.framework.plain import plain
from veen.products.policy.commands.sources import PolicySources, agent_of, policy_options, realm_fold

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.session import PinnedHub
    from veen.overlays.federation.policy import RealmPolicy
    from veen.products.policy.agent import HubReport, PolicyAgent

_NAMED_GAPS: Final = 5
_KINDS: Final = ("client-id", "auth-ref", "cap-token")

policy: Final = NounGroup(
    "policy",
    "The policy of a realm: revocations and primaries, from its streams to the hubs that enforce it.",
    writes=[realm_options],
)


# --- writing -----------------------------------------------------------------------------------------------------


@policy.write(
    "revoke",
    "Revoke a client key, an auth_ref, or a capability token.",
    argument("kind", type=click.Choice(_KINDS)),
    argument("target"),
    option("--link", type=click.IntRange(min=1), help="Revoke a link of the token in the file TARGET: 1 is the first."),
    option("--ttl", type=SPAN, help="Lifetime of the revocation. Default: unlimited."),
    option("--reason", help="Reason, for readers of the stream; hubs never see it."),
    MAKE_KEYS,
)
def _revoke(
    session: CliSession,
    kind: str,
    target: str,
    link: int | None,
    ttl: int | None,
    reason: str | None,
    keys: bool,
    realm: AdminRealm,
) -> Outgoing:
    """Write a revocation of TARGET, 64 hex digits or a file with a token, to the realm's stream.

    A link revokes every token whose chain holds it: all renewals that followed. A hub refuses from the second
    after the policy agent has told it.

    \b
    veen policy revoke client-id 4f1c…
    veen policy revoke cap-token bob.cap --link 1 --reason "left the company"
    """
    from veen.cli.shared.overlay_commands import make_keys
    from veen.overlays.federation.realm import revoke

    named = _target(kind, target, link)
    stream = realm.revocation_stream()
    if keys:
        make_keys(session, stream)  # before the identity is in use for reading the hub
    realm.announce(session, stream)
    facts = {"kind": kind, "target": named, "stream": stream}
    return Outgoing(
        stream,
        lambda: revoke(kind, named, ts=int(time.time()), ttl=ttl, reason=reason),
        facts,
        fold=lambda: realm_fold(session, realm),
        follow_up="veen policy push",
    )


def _publish_command() -> click.Command:
    """Return `veen revoke publish`, the spelling of spec-4 §12."""
    command = policy.get_command(click.Context(policy), "revoke")
    assert command is not None  # noqa: S101 - defined above
    command.name, command.help = "publish", (command.help or "").replace("veen policy revoke", "veen revoke publish")
    return command


revoke_publish: Final = _publish_command()


def _target(kind: str, text: str, link: int | None) -> bytes:
    from veen.cli.shared.files import hex32

    path = Path(text)
    if not path.is_file():
        if link is not None:
            raise click.UsageError("--link needs a file with a token")
        return hex32(text)
    token = read_token(path)
    if link is not None:
        if kind != "cap-token":
            raise click.UsageError("--link requires the kind cap-token")
        if link > len(token.sig_chain):
            raise click.UsageError(f"the token has {len(token.sig_chain)} links")
        return token.revocable_as()[link]
    return {"client-id": token.subject_pk, "auth-ref": token.auth_ref(), "cap-token": token.revocable_as()[0]}[kind]


@policy.write(
    "assign",
    "Say which hub is the primary of a stream.",
    argument("stream", type=STREAM),
    option("--primary", type=HEX32, help="Hub id of the primary. Default: this hub."),
    option("--replica", "replicas", type=HEX32, multiple=True, help="Hub id of a replica. Repeatable."),
    option("--multi-primary", is_flag=True, help="Let every hub admit messages of the stream."),
    option(
        "--ttl",
        type=SPAN,
        default="1d",
        show_default=True,
        help="Lifetime of the assignment; renew it before it expires.",
    ),
    MAKE_KEYS,
)
def _assign(
    session: CliSession,
    stream: str,
    primary: bytes | None,
    replicas: tuple[bytes, ...],
    multi_primary: bool,
    ttl: int,
    keys: bool,
    realm: AdminRealm,
) -> Outgoing:
    """Write to the realm's stream which hub is the primary of STREAM; others refuse messages to it (NOT_PRIMARY).

    Of records that are active at once the earliest counts: a cut-over waits for the end of the one before.

    \b
    veen policy assign orders --ttl 1d
    veen policy assign orders --primary 4f1c… --replica 91aa…
    """
    from veen.cli.shared.overlay_commands import make_keys
    from veen.client.identity.keyring import StreamRef
    from veen.core.objects.policies import MULTI_PRIMARY, SINGLE_PRIMARY, Authority
    from veen.overlays.federation.realm import assign

    ident = StreamRef.parse(stream).stream_id
    if ident is None:
        raise click.UsageError(f"{stream} is a label: name the stream")
    on = realm.authority_stream()
    if keys:
        make_keys(session, on)  # before the identity is in use for reading the hub
    realm.announce(session, on)
    authority = Authority(
        realm_id=realm.realm_id,
        stream_id=ident,
        primary_hub=primary or session.client().hub_id,
        replica_hubs=replicas,
        policy=MULTI_PRIMARY if multi_primary else SINGLE_PRIMARY,
        ts=int(time.time()),
        ttl=ttl,
    )
    facts = {"stream": stream, "primary_hub": authority.primary_hub, "policy": authority.policy, "ttl": ttl}
    return Outgoing(
        on, lambda: assign(authority), facts, fold=lambda: realm_fold(session, realm), follow_up="veen policy push"
    )


# --- hubs --------------------------------------------------------------------------------------------------------


@policy.verb("run", "Keep hubs at the policy of a realm, until stopped.")
@option("--for", "span", type=SPAN, help="Stop after this time. Default: run until interrupted.")
@policy_options
@client_options
def run(output: Output, session: CliSession, span: int | None, sources: PolicySources) -> None:
    """Follow the streams of a realm and send new records to each hub at once.

    A hub needs admission.kex1_plus for revocations and admission.auth1 for primaries, and the agent its administrator
    token (context add … --token-file). Nothing is kept on disk: kill it and start it again at any time. A record is in
    force at a hub from the second after the hub was told, which is as soon as the stream has grown.

    \b
    veen policy run --to hub-a --to hub-b
    veen policy run --to hub-a --access access --granter 4f1c…
    """
    import asyncio

    hubs = hubs_of(session, sources.targets)
    with output.records("pushes", ("hub", "revocations", "authorities", "trouble", "gaps")) as records:

        def show_push(report: "HubReport") -> None:
            records.add(_push_row(report), tuple(_push_row(report).values())[:5])

        agent = agent_of(session, sources, hubs, show_push)

        async def work(client: "Client") -> None:
            try:
                async with asyncio.timeout(span):
                    await agent.run(client)
            except TimeoutError:
                if span is None:
                    raise

        output.notice(f"keeping {', '.join(hub.name for hub in hubs)} up to date", hubs=[hub.name for hub in hubs])
        session.client().run(work)


@policy.verb("push", "Send the policy of a realm to hubs, once.")
@policy_options
@client_options
def push(output: Output, session: CliSession, sources: PolicySources) -> None:
    """Fold the streams of a realm and send the policy to each hub; a hub does not journal records that it has.

    Exit code 6 and POLICY.HUB if a hub did not take all of it; the others have it. Exit code 6 and POLICY.INCOMPLETE
    if entries could not be opened or were erased, so that revocations may be missing; hubs have the rest.

    \b
    veen policy push
    veen policy push --realm factory --to hub-a --to hub-b --json
    """
    hubs = hubs_of(session, sources.targets)
    agent = agent_of(session, sources, hubs)

    async def work(client: "Client") -> "list[HubReport]":
        await agent.read(client)
        return await agent.push()

    with output.progress("telling hubs"):
        reports = session.client().run(work)
    rows = [_push_row(report) for report in reports]
    data = {**_policy(agent), "hubs": rows}
    output.result(data, lambda: output.table(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    if failed := [report for report in reports if report.trouble is not None]:
        raise Fail(
            "POLICY.HUB",
            f"{len(failed)} of {len(reports)} hubs do not enforce the policy",
            "; ".join(f"{report.hub}: {report.trouble}" for report in failed),
            "veen policy show",
        )
    _check_complete(agent)


@policy.verb("show", "Show the policy of a realm, and the records that hubs have.")
@policy_options
@client_options
def show(output: Output, session: CliSession, sources: PolicySources) -> None:
    """Fold the streams of a realm, read each hub's records, and compare: `missing` counts records that a hub lacks.

    Exit code 6 and POLICY.INCOMPLETE if entries of the streams could not be opened or were erased.

    \b
    veen policy show
    veen policy show --to hub-a --to hub-b --json
    """
    hubs = hubs_of(session, sources.targets)
    agent = agent_of(session, sources)

    async def work(client: "Client") -> list[dict[str, Any]]:
        wanted = await agent.read(client)
        return [await _hub_row(hub, wanted) for hub in hubs]

    with output.progress("comparing"):
        rows = session.client().run(work)
    data = {**_policy(agent), "hubs": rows}

    def human() -> None:
        output.table(
            ("kind", "target", "from", "ttl"),
            [(r["kind"], r["target"], r["ts"], r["ttl"] or "-") for r in data["revocations"]],
        )
        output.table(
            ("stream", "primary", "policy", "from", "ttl"),
            [(a["stream_id"], a["primary_hub"], a["policy"], a["ts"], a["ttl"]) for a in data["authorities"]],
        )
        output.table(tuple(rows[0]), [tuple(row.values()) for row in rows])
        for entry in data["unresolved"]:
            output.note(f"no token of the grants that {entry['revocation_id']} revokes is known: give --token FILE")
        for issue in data["issues"]:
            output.note(f"{issue['code']} at {issue['stream_seq']}: {issue['what']}")

    output.result(data, human)
    _check_complete(agent)


@policy.verb("bound", "Have the hub refuse messages above a size.")
@click.argument("target")
@click.argument("size", type=SIZE)
@client_options
def bound(output: Output, session: CliSession, target: str, size: int) -> None:
    """Have the hub refuse messages to TARGET above SIZE bytes, counted as sent: sealed and padded.

    TARGET is a stream, a pattern over names of the keyring ('record/*'), or label:HEX. SIZE 0 lifts the bound. The hub
    writes it into its control journal and enforces it from the next second on (E.SIZE). Needs the hub's administrator
    token. For a recorder add 16 KiB to the bound of payloads.

    \b
    veen policy bound record/app/web 272KiB --token-file hub-admin.token
    veen policy bound 'record/*' 272KiB --token-file hub-admin.token
    """
    from veen.core.objects.control import PolicyBounds
    from veen.core.objects.policies import SizeBound

    targets = _bound_targets(session, target)
    bounds = [SizeBound(kind=kind, target=each, max_msg_bytes=size) for each, (kind, _) in targets.items()]
    with output.progress("telling the hub"):
        records = session.client().run(lambda client: client.bound(bounds))
    new = {row.target for record in records if isinstance(record.body, PolicyBounds) for row in record.body.bounds}
    rows = [
        {"target": name, "kind": kind, "id": each.hex(), "max_msg_bytes": size, "new": each in new}
        for each, (kind, name) in targets.items()
    ]
    records_of = [record.seq for record in records]
    output.result(
        {"bounds": rows, "control_seq": records_of[0] if records_of else None},
        lambda: output.table(tuple(rows[0]), [tuple(row.values()) for row in rows]),
    )


def _bound_targets(session: CliSession, text: str) -> dict[bytes, tuple[str, str]]:
    """Return label or stream_id -> (kind, name)."""
    from fnmatch import fnmatchcase

    from veen.cli.shared.overlay_commands import absent
    from veen.client.identity.keyring import StreamRef

    if any(mark in text for mark in "*?["):
        entries = session.keystore.secrets.keyring.entries
        named = {keys.stream_id: keys.name for keys in entries if keys.name and fnmatchcase(keys.name, text)}
        if not named:
            raise absent(f"stream like {text!r} in the keyring", "veen id keyring list")
        return {stream_id: ("stream", name) for stream_id, name in sorted(named.items(), key=lambda row: row[1])}
    ref = StreamRef.parse(text)
    if ref.label is not None:
        return {ref.label: ("label", text)}
    assert ref.stream_id is not None  # noqa: S101 - a reference is a label or a stream
    return {ref.stream_id: ("stream", text)}


@policy.verb("drop", "Drop keys and tokens of yours that the realm has revoked.")
@realm_options
@client_options
def drop(output: Output, session: CliSession, realm: AdminRealm) -> None:
    """Read the revocations of a realm and drop your revoked tokens and client keys (KEX1-09).

    A revoked key that is in use gives way to a new one, for which you need new tokens.

    \b
    veen policy drop
    """
    from veen.cli.shared.folding import fold_streams
    from veen.client.identity.revocation import discard_revoked

    state = fold_streams(session, realm_fold(session, realm), [realm.revocation_stream()]).state
    tokens = token_store(session)
    session.close()  # the client gives the identity back, which changes now
    with session.home.lock(session.identity_name):
        dropped = discard_revoked(state.revocations, session.keystore, tokens, int(time.time()))
    data = {
        "tokens": [ref.hex() for ref in dropped.auth_refs],
        "client_keys": [client_id.hex() for client_id in dropped.client_ids],
        "client_id": session.keystore.identity.client_id.hex(),
    }
    output.result(
        data, lambda: output.fields([("tokens", len(data["tokens"])), ("client keys", len(data["client_keys"]))])
    )


def _push_row(report: "HubReport") -> dict[str, Any]:
    return {
        "hub": report.hub,
        "revocations": report.pushed.revocations,
        "authorities": report.pushed.authorities,
        "trouble": report.trouble,
        "gaps": report.gaps,
        "seconds": None if report.seconds is None else round(report.seconds, 4),
    }


def _policy(agent: "PolicyAgent") -> dict[str, Any]:
    wanted = agent.policy()
    return {
        "revocations": [_shown(item) for item in wanted.revocations],
        "authorities": [_shown(item) for item in wanted.authorities],
        "unresolved": [plain(item) for item in wanted.unresolved],
        "issues": [plain(issue) for issue in agent.issues()],
        "gaps": [plain(gap) for gap in agent.gaps()],
    }


def _check_complete(agent: "PolicyAgent") -> None:
    """Raise Fail if entries that could change the policy could not be read."""
    if gaps := agent.gaps():
        named = [f"{gap.stream} {gap.first}..{gap.last}: {gap.why}" for gap in gaps[:_NAMED_GAPS]]
        more = [f"{len(gaps) - _NAMED_GAPS} more"] if len(gaps) > _NAMED_GAPS else []
        raise Fail(
            "POLICY.INCOMPLETE",
            f"{agent.missing_count} entries are missing in the policy",
            "; ".join([*named, *more]),
            "veen keys check",
        )


def _shown(item: Any) -> dict[str, Any]:
    data: dict[str, Any] = item.to_json()
    return {"ttl": None, **data}


async def _hub_row(hub: "PinnedHub", wanted: "RealmPolicy") -> dict[str, Any]:
    from veen.client.errors import HubRefused, NetworkError
    from veen.products.policy.agent import policy_link

    row: dict[str, Any] = {"hub": hub.name, "kex1_plus": None, "auth1": None, "records": None, "missing": None}
    try:
        async with policy_link(hub) as link:
            reported = await link.report()
    except (NetworkError, HubRefused) as exc:
        return {**row, "trouble": str(exc)}
    missing = reported.missing(wanted, int(time.time()))
    return {
        "hub": hub.name,
        "kex1_plus": reported.kex1_plus,
        "auth1": reported.auth1,
        "records": reported.records,
        "missing": len(missing.authorities) + len(missing.revocations),
        "trouble": None,
    }
