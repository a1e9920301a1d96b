"""`veen id stolen`: recovery after somebody copied the keystore of an identity (decision 434)."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.people import contact_store
from veen.cli.shared.values import MOMENT
from veen.core.errors import VeenError

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.identity import Identity
    from veen.client.identity.theft import Act, HubReport, Judge, StreamReport
    from veen.core.event import Event

_TOLD: Final = 8  # commands or acts that a terminal gets of a kind; --json has all


@dataclass(frozen=True, slots=True)
class _Visit:
    """Result of the visit to one hub: a report, or the reason why there is none."""

    name: str
    report: "HubReport | None"
    cause: str | None = None


@click.command("stolen")
@click.option("--since", type=MOMENT, help="Earliest time of the copy, by the hub's time: ISO 8601, or -15m.")
@click.option("--again", is_flag=True, help="Replace the keys again, because the keystore was copied again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def take_back(output: Output, session: CliSession, since: int | None, again: bool, yes: bool) -> None:
    """Take your identity back after somebody copied its keystore: at every hub of your contexts, in every stream.

    Your keys are replaced first. Then, in each stream, the new identity takes the place of the old one, which ends what
    the thief's keys may say; streams that you own get a new owner's key and new read keys; hubs are asked to refuse the
    old keys and tokens, which needs the right to administer them (--token-file, or that of the context).

    With --since, what was written under your keys since then is listed as disputed, and readers who were admitted since
    then get no new keys. Repeat the command until nothing is left for you to do; until then it ends with exit 6. Where
    the thief was first nothing is written: guardians, or the owner of the stream, must help.

    \b
    veen id stolen --since -2h
    veen id stolen
    """
    _replace_keys(output, session, again=again, yes=yes)
    identity = session.keystore.identity
    visits = _visit_hubs(output, session, identity, since)
    data = _data(session, visits)
    output.result(data, lambda: _show(output, data))
    _end(data)


def _replace_keys(output: Output, session: CliSession, *, again: bool, yes: bool) -> None:
    """Make and store the new keys, unless an earlier run did. Replace a client key that is too old."""
    from veen.client.identity.rotation import needs_rotation

    former, now = session.keystore.identity.former, int(time.time())
    is_first = not former or again
    if is_first and not yes:
        if not output.may_ask:
            raise Fail(
                "E.LOCAL.INPUT",
                "the keys of the identity would be replaced for good",
                "there is nobody to ask",
                "add --yes",
            )
        click.confirm(f"Replace all keys of {session.identity_name} for good?", abort=True, err=True)
    with session.home.lock(session.identity_name):
        keystore = session.keystore
        if is_first:
            keystore.replace_keys(now)
        elif needs_rotation(keystore.identity, {}, now) is not None:
            keystore.rotate(now)
    if not is_first:
        output.note(f"the keys were replaced at {when(former[-1].replaced_at)}; if they were copied since: --again")


def _contexts(session: CliSession) -> list[CliSession]:
    """Return a session for each context that uses the identity, the one in use first; all have its open keystore."""
    from pathlib import Path

    from veen.client.config.projects import read_both

    settings = session.settings
    current = settings.context.value
    if settings.hub.value is not None and current is None:
        return [session]
    names: list[str] = [] if current is None else [str(current)]
    for file in read_both(Path.cwd(), session.user_home.config_file):
        names += [name for name in sorted(file.contexts) if name not in names]
    sessions = []
    for name in names:
        there = session if name == current else session.in_context(name)
        with contextlib.suppress(VeenError):
            if (there.home.data, there.identity_name) == (session.home.data, session.identity_name):
                there.__dict__["keystore"] = session.keystore  # open already, and saved by one at a time
                sessions.append(there)
    return sessions or [session]


def _visit_hubs(output: Output, session: CliSession, identity: "Identity", since: int | None) -> list[_Visit]:
    visits: list[_Visit] = []
    hub_ids: set[bytes] = set()
    for there in _contexts(session):
        name = str(there.settings.context.value or there.settings.hub.value or "")
        try:
            with output.progress(f"taking the identity back at {name}"):
                hub_id, report = _visit(there, identity, since)
        except (VeenError, OSError, Fail) as exc:
            visits.append(_Visit(name, None, str(exc) or type(exc).__name__))
            continue
        if hub_id not in hub_ids:
            visits.append(_Visit(name, report))
        hub_ids.add(hub_id)
    return visits


def _visit(session: CliSession, identity: "Identity", since: int | None) -> "tuple[bytes, HubReport]":
    """Complete the recovery at the hub of a context."""
    from veen.client.identity.theft import secure_hub
    from veen.client.identity.workers import worker_client_ids
    from veen.client.send.captokens import TokenStore

    acting = identity.act_as(identity.former[-1])
    tokens = TokenStore(session.home.tokens_fs(identity.name)).all()
    workers = {key for former in identity.former for key in worker_client_ids(session.home, identity.act_as(former))}

    async def work(client: "Client") -> "HubReport":
        return await secure_hub(client, identity, _judge(), tokens=tokens, worker_ids=sorted(workers), since=since)

    with session.client_as(acting) as client:
        return client.hub_id, client.run(work)


def _judge() -> "Judge":
    from veen.overlays.framework.stream import fold_events
    from veen.overlays.speaks import SpeaksFold

    fold = SpeaksFold()

    def judge(events: "Sequence[Event]") -> Any:
        return fold.view(fold_events(fold, events))

    return judge


# --- what is reported -----------------------------------------------------------------------------------------


def _data(session: CliSession, visits: Sequence[_Visit]) -> dict[str, Any]:
    from veen.client.identity.theft import State, never_written

    identity = session.keystore.identity
    streams: list[dict[str, Any]] = []
    hubs: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    remaining: list[str] = []
    for visit in visits:
        if visit.report is None:
            hubs.append(_hub_row(visit, []))
            remaining.append(f"the hub of {visit.name} was not reached: {visit.cause}")
            continue
        for row in visit.report.streams:
            streams.append(_stream_row(visit.name, row))
            if row.state is State.OPEN:
                remaining.append(f"{row.stream} at {visit.name}: {row.cause}")
            elif row.state is State.THIEF_FIRST:
                remaining.append(f"{row.stream} at {visit.name}: somebody else was first; it needs people")
            others += _for_others(identity, visit.name, row)
        commands = _list_revoke_commands(visit.report) if visit.report.is_settled and not visit.report.refuses else []
        hubs.append(_hub_row(visit, commands))
        others += [_task(f"the administrator of {visit.name}", "refuse the old keys", line) for line in commands]
        if visit.report.asks_for_tokens and visit.report.is_settled:
            what = "the hub asks for tokens: have one issued for your new card"
            others.append(_task(f"an issuer of {visit.name}", what, f"veen invite STREAM --for {_card(identity)}"))
    reports = [visit.report for visit in visits if visit.report is not None]
    if len(reports) == len(visits):
        for keys in never_written(session.keystore.secrets.keyring, reports, identity):
            remaining.append(f"{keys} has no entry anywhere, and the thief has its keys: veen id keyring remove {keys}")
    for contact in contact_store(session).load().contacts:
        what = f"compare your new card, {identity.card_id}, over another channel than messages"
        old, new = f"{identity.name}-{identity.former[-1].card_id}", identity.name
        command = f"veen contacts rename {new} {old} && veen contacts add {new} {_card(identity)}"
        others.append(_task(contact.name, what, command))
    return {
        "identity": identity.name,
        "card_id": identity.card_id,
        "card": _card(identity),
        "former_card_ids": [keys.card_id for keys in identity.former],
        "replaced_at": when(identity.former[-1].replaced_at),
        "streams": streams,
        "hubs": hubs,
        "others": others,
        "remaining": remaining,
    }


def _card(identity: "Identity") -> str:
    return identity.card().to_text()


def _task(who: str, what: str, command: str) -> dict[str, Any]:
    return {"who": who, "what": what, "command": command}


def _hub_row(visit: _Visit, commands: list[str]) -> dict[str, Any]:
    report = visit.report
    return {
        "hub": visit.name,
        "reached": report is not None,
        "refuses": report is not None and report.refuses,
        "cause": visit.cause if report is None else report.cause,
        "revocations": 0 if report is None else len(report.revocations),
        "commands": commands,
    }


def _list_revoke_commands(report: "HubReport") -> list[str]:
    rows = [f"veen policy revoke {row.kind} {row.target.hex()} --token-file FILE" for row in report.revocations]
    return [*rows, "veen policy push --token-file FILE"]


def _stream_row(hub: str, row: "StreamReport") -> dict[str, Any]:
    return {
        "stream": row.stream,
        "stream_id": row.stream_id.hex(),
        "hub": hub,
        "owned": row.is_owned,
        "state": row.state.value,
        "position": row.position,
        "successor": None if row.successor is None else row.successor.hex(),
        "generation": row.generation,
        "readers": [card.card_id for card in row.readers],
        "removed": [card.card_id for card in row.removed],
        "disputed": [_act(act) for act in row.disputed],
        "cause": row.cause,
    }


def _act(act: "Act") -> dict[str, Any]:
    return {
        "label": act.label.hex(),
        "seq": act.order[-1],
        "time": when(act.order[0]),
        "client_id": act.client_id.hex(),
        "schema": None if act.schema is None else act.schema.hex(),
    }


def _for_others(identity: "Identity", hub: str, row: "StreamReport") -> list[dict[str, Any]]:
    """Return what the owner of a stream has to do, as long as the old card reads it."""
    if not row.old_card_reads or row.owner_pk is None:
        return []
    old = identity.former_card(identity.former[-1]).to_text()
    who = f"the owner of {row.stream} at {hub} ({row.owner_pk.hex()[:16]}…)"
    return [
        _task(who, "new read keys, without your old card", f"veen keys rotate {row.stream} --without {old}"),
        _task(who, "an invitation for your new card", f"veen invite {row.stream} --for {_card(identity)}"),
    ]


def _show(output: Output, data: dict[str, Any]) -> None:
    output.fields([("identity", data["identity"]), ("card_id", data["card_id"]), ("replaced_at", data["replaced_at"])])
    columns = ("hub", "stream", "state", "position", "generation", "disputed")
    output.table(
        columns,
        [[*(row[name] for name in columns[:-1]), len(row["disputed"])] for row in data["streams"]],
    )
    for row in data["streams"]:
        for act in row["disputed"][:_TOLD]:
            output.line(f"disputed: {row['stream']} {act['seq']} at {act['time']} by {act['client_id'][:16]}")
        if row["removed"]:
            output.line(f"no new keys of {row['stream']}: {', '.join(row['removed'])}")
        if row["state"] == "thief_first":
            output.line(f"{row['stream']}: {row['cause'] or 'successor ' + row['successor']}", "bad")
    for row in data["hubs"]:
        output.line(f"{row['hub']}: refuses the old keys" if row["refuses"] else f"{row['hub']}: {row['cause']}")
    for task in data["others"][:_TOLD]:
        output.line(f"{task['who']}: {task['what']}")
        output.line(f"  {task['command']}")
    if len(data["others"]) > _TOLD:
        output.line(f"and {len(data['others']) - _TOLD} more for others; --json lists all")


def _end(data: dict[str, Any]) -> None:
    if data["remaining"]:
        raise Fail(
            "E.INCOMPLETE",
            f"{len(data['remaining'])} things remain to be done",
            "; ".join(data["remaining"])[:500],
            "repeat: veen id stolen; where somebody else was first, ask guardians or the owner of the stream",
        )
