"""`veen bridge doctor`, `reconcile` and `evidence`: check the setup of a bridge, and its work."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.files import OBJECT_FILE, hex32
from veen.cli.shared.output import Output
from veen.cli.shared.verifying import end_by, read_as, show_verdict, verdict_json
from veen.core.verdict import Outcome

if TYPE_CHECKING:
    from veen.lake.log.prefix import Prefix
    from veen.products.bridge.audit import RoleFinding, RoleHolder

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_OFFLINE: Final = click.option("--offline", required=True, help="Data directory of the receiving hub, or a copy.")
_ONLINE: Final = click.option("--online", help="Data directory of the sending hub, or a copy.")
_BUNDLES: Final = click.option("--bundles", type=_FOLDER, multiple=True, help="Folder of bundles. Repeatable.")
_TRUST: Final = click.option("--trust", type=_FILE, required=True, help="File with the trust list.")


def _holder(session: CliSession, role: str, name: str) -> "RoleHolder":
    from veen.client.send.captokens import TokenStore
    from veen.products.bridge.audit import RoleHolder

    home, identity_name = session.place_of(name)
    keystore = session.open_keystore(home, identity_name)
    identity = keystore.identity
    return RoleHolder(
        role=role,
        name=identity_name,
        keys=frozenset((identity.id_sign_pk, *(key.client_id for key in identity.client_keys))),
        readable=tuple(str(keys) for keys in keystore.secrets.keyring.entries if keys.can_read),
        tokens=tuple(entry.token for entry in TokenStore(home.tokens_fs(identity_name)).all()),
    )


@click.command()
@click.option("--exporter", help="Identity that reads in the sending zone.")
@click.option("--online-log", help="Identity that writes bridge/online/log.")
@click.option("--importer", help="Identity that writes import streams.")
@click.option("--offline-log", help="Identity that writes bridge/offline/log.")
@click.option(
    "--zone", type=click.Choice(["online", "offline"]), help="Ask the hub of this zone for recorded tokens, too."
)
@client_options
def doctor(
    output: Output,
    session: CliSession,
    exporter: str | None,
    online_log: str | None,
    importer: str | None,
    offline_log: str | None,
    zone: str | None,
) -> None:
    """Refuse a bridge whose roles are mixed: no identity may read in one zone and write in the other.

    Name the identities on this machine. With --zone, also check that the hub in use has recorded no token of an
    identity that must not write there.

    \b
    veen bridge doctor --exporter exporter --online-log online-log --zone online
    """
    from veen.products.bridge.audit import ROLES, judge
    from veen.products.bridge.bundle import BridgeMisconfigured

    names = dict(zip(ROLES, (exporter, online_log, importer, offline_log), strict=True))
    holders = [_holder(session, role, name) for role, name in names.items() if name is not None]
    if not holders:
        raise click.UsageError("name at least one identity")
    findings = judge(holders)
    if zone is not None:
        findings += _at_hub(session, zone, holders)
    with output.records("roles", ("role", "identity", "result")) as records:
        for holder in holders:
            wrong = [finding.what for finding in findings if finding.role == holder.role]
            row = {"role": holder.role, "identity": holder.name, "ok": not wrong, "findings": wrong}
            records.add(row, [holder.role, holder.name, "; ".join(wrong) or "ok"])
        records.summary({"findings": len(findings)})
    if findings:
        raise BridgeMisconfigured(findings[0].what)


def _at_hub(session: CliSession, zone: str, holders: "list[RoleHolder]") -> "list[RoleFinding]":
    from veen.client.errors import HubRefused
    from veen.client.transport.calls import is_not_found
    from veen.products.bridge.audit import judge_at_hub

    client = session.client()
    findings = []
    for holder in holders:
        recorded = []
        for token in holder.tokens:
            try:
                client.cap_status(token.auth_ref())
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
            else:
                recorded.append(token.auth_ref())
        findings += judge_at_hub(zone, holder, recorded)
    return findings


@click.command()
@_OFFLINE
@_ONLINE
@_BUNDLES
@_TRUST
@click.option(
    "--checkpoint",
    "checkpoints",
    type=OBJECT_FILE,
    multiple=True,
    help="CHECKPOINT of the sending hub: compare its label up to it. Repeatable.",
)
@click.option(
    "--engine", type=click.Choice(["python", "spark"]), default="python", help="Engine that reads the import streams."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the signed report to this file.")
@identity_options
def reconcile(
    output: Output,
    session: CliSession,
    offline: str,
    online: str | None,
    bundles: tuple[Path, ...],
    trust: Path,
    checkpoints: tuple[Path, ...],
    engine: str,
    out: Path | None,
) -> None:
    """Compare exports of one zone with imports of the other; the report is signed by the identity in use.

    The identity reads import/* and bridge/offline/log, with --online also bridge/online/log. Without --online the
    exports are taken from the bundles that arrived, so the receiving zone needs no access to the other; beside a folder
    `imported`, the bundles in incoming, waiting and importing are read as well. Both hubs may keep running. The report
    lists the position to which each log was read. Exit code 1 if evidence is bad: an event without a valid origin, a
    wrong audit record, or two histories. Exit code 6 if entries are missing, or were not read up to the head.
    --checkpoint replaces the head of its label: exports and imports behind it do not count as missing.

    \b
    veen bridge reconcile --offline /srv/z2 --online /srv/z1-copy --trust trust.toml --identity auditor
    veen bridge reconcile --offline /srv/z2 --bundles /srv/bridge/imported --trust trust.toml --identity auditor
    """
    from veen.core.objects.checkpoint import Checkpoint
    from veen.products.bridge.reconciling import Arrived, Offline, sign_report
    from veen.products.bridge.reconciling import reconcile as compared
    from veen.products.bridge.sources import Zones, read_zones
    from veen.products.bridge.trust import TrustList

    if online is None and not bundles:
        raise click.UsageError("give --online DIRECTORY, or --bundles FOLDER")
    keyring = session.keystore.secrets.keyring
    trusted = TrustList.from_toml(trust.read_text("utf-8"))

    def on_spark(place: Offline, prefix: "Prefix") -> Arrived:
        from veen.lake.log.keys import keys_for_tasks
        from veen.lake.spark.session import spark_session
        from veen.products.bridge.on_spark import fold_on_spark

        with keys_for_tasks(keyring) as key_file:
            return fold_on_spark(spark_session("veen bridge reconcile"), place, key_file, prefix=prefix)

    chosen = []
    for path in checkpoints:
        _, checkpoint = read_as(path, Checkpoint)
        assert isinstance(checkpoint, Checkpoint)  # noqa: S101 - read_as made sure
        chosen.append(checkpoint)
    zones = Zones(offline=offline, online=online, folders=bundles, checkpoints=tuple(chosen))
    report = compared(*read_zones(zones, keyring, trusted, on_spark if engine == "spark" else None))
    signed = sign_report(report, session.keystore.identity.id_sign)
    if out is not None:
        out.write_text(json.dumps(signed, indent=1, sort_keys=True), "utf-8")
    verdict = report.verdict

    def human() -> None:
        for stream in report.data["streams"]:
            output.fields(stream.items())
        output.fields(
            (name, f"{row['verdict']} {row['first'] or ''}") for name, row in report.data["invariants"].items()
        )
        show_verdict(output, verdict)

    output.result({**signed, **verdict_json(verdict)}, human)
    code = "AGB.GAPS" if verdict.value is Outcome.INCOMPLETE else None
    if report.data["invariants"]["J1"]["verdict"] == "violated":
        code = "AGB.RECEIPT_SIG"
    hint = "carry the missing bundles again, then reconcile once more" if code == "AGB.GAPS" else None
    end_by(verdict, "the two zones of the bridge", code=code, hint=hint)


@click.command()
@click.argument("msg_id")
@_OFFLINE
@_ONLINE
@_BUNDLES
@_TRUST
@identity_options
def evidence(
    output: Output,
    session: CliSession,
    msg_id: str,
    offline: str,
    online: str | None,
    bundles: tuple[Path, ...],
    trust: Path,
) -> None:
    """Verify the seven links of one event: author, receipt, checkpoint, bundle, both audit logs, import.

    MSG_ID is the message id in the sending zone.

    \b
    veen bridge evidence 3f…9a --bundles /srv/bridge/imported --offline /srv/z2 --trust trust.toml --identity auditor
    """
    from veen.products.bridge.evidence import links_of, verdict_of
    from veen.products.bridge.sources import bundle_paths
    from veen.products.bridge.trust import TrustList

    if not bundles:
        raise click.UsageError("give --bundles FOLDER: the bundle that brought the event")
    links = links_of(
        hex32(msg_id),
        bundles=bundle_paths(bundles),
        trust=TrustList.from_toml(trust.read_text("utf-8")),
        offline=offline,
        online=online,
        keyring=session.keystore.secrets.keyring,
    )
    with output.records("links", ("link", "holds", "what")) as records:
        for link in links:
            row = {"link": link.name, "holds": link.holds, "what": link.what, **link.facts}
            words = {True: "yes", False: "NO", None: "not looked at"}
            records.add(row, [link.name, words[link.holds], link.what])
        verdict = verdict_of(links, msg_id)
        broken = sum(link.holds is False for link in links)
        records.summary({"msg_id": msg_id, "broken": broken, **verdict_json(verdict)})
    show_verdict(output, verdict)
    end_by(verdict, "the chain of evidence", code="AGB.GAPS" if verdict.value is Outcome.INCOMPLETE else None)
