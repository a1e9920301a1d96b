"""`veen bridge doctor`, `reconcile` and `evidence`: whether a bridge is set up, and worked, as it must."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.products.airgap.reconciling import Arrived, Exported
    from veen.products.airgap.roles import RoleFinding, RoleHolder

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_OFFLINE: Final = click.option("--offline", required=True, help="The data directory of the receiving hub, or a copy.")
_ONLINE: Final = click.option("--online", help="The data directory of the sending hub, or a copy.")
_BUNDLES: Final = click.option("--bundles", type=_FOLDER, multiple=True, help="A folder of bundles. Repeatable.")
_TRUST: Final = click.option("--trust", type=_FILE, required=True, help="The list of trusted sources.")


def _holder(session: CliSession, role: str, name: str) -> "RoleHolder":
    from veen.client.send.captokens import TokenStore
    from veen.products.airgap.roles import RoleHolder

    home, identity_name = session.place_of(name)
    keystore = session.opened(home, identity_name)
    identity = keystore.identity
    return RoleHolder(
        role=role,
        name=identity_name,
        keys=frozenset((identity.id_sign_pk, *(key.client_id for key in identity.client_keys))),
        readable=tuple(str(keys) for keys in keystore.secrets.keyring.entries if keys.can_read),
        tokens=tuple(entry.token for entry in TokenStore(home.tokens_fs(identity_name)).all()),
    )


@click.command()
@click.option("--exporter", help="The identity that reads in the sending zone.")
@click.option("--online-log", help="The identity that writes bridge/online/log.")
@click.option("--importer", help="The identity that writes import streams.")
@click.option("--offline-log", help="The identity that writes bridge/offline/log.")
@click.option(
    "--zone", type=click.Choice(["online", "offline"]), help="Ask the hub of this zone which tokens it knows."
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

    Name the identities that are on this machine. With --zone the hub in use is asked whether it has recorded a token of
    an identity that must not write there.

    \b
    veen bridge doctor --exporter exporter --online-log online-log --zone online
    """
    from veen.products.airgap.errors import BridgeMisconfigured
    from veen.products.airgap.roles import ROLES, judge

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
    from veen.products.airgap.roles import judge_at_hub

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
    "--engine", type=click.Choice(["python", "spark"]), default="python", help="Where the import streams are read."
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
    engine: str,
    out: Path | None,
) -> None:
    """Compare what left one zone with what arrived in the other; the report is signed by the identity in use.

    The identity reads import/* and bridge/offline/log, with --online also bridge/online/log. Without --online the
    bundles that arrived say what left, so that the receiving zone can do it alone. Exit code 6 if something is missing,
    doubled or incomplete, 1 if an imported event has no good origin.

    \b
    veen bridge reconcile --offline /srv/z2 --online /srv/z1-copy --trust trust.toml --identity auditor
    veen bridge reconcile --offline /srv/z2 --bundles /srv/bridge/imported --trust trust.toml --identity auditor
    """
    from veen.products.airgap.reconciling import Sides, offline_side, online_side, signed_report
    from veen.products.airgap.reconciling import reconcile as compared
    from veen.products.airgap.sources import bundle_side, heads_of, identities_of
    from veen.products.airgap.trust import TrustList

    if online is None and not bundles:
        raise click.UsageError("give --online DIRECTORY, or --bundles FOLDER")
    keyring = session.keystore.secrets.keyring
    trusted = TrustList.from_toml(trust.read_text("utf-8"))
    exported: tuple[Exported, ...]
    if online is not None:
        exported, online_writers = online_side(online, keyring)
    else:
        exported, online_writers = bundle_side(bundles, trusted), frozenset()
    records, offline_writers = offline_side(offline, keyring)
    arrived = _arrived(session, offline, identities_of(trusted, online, bundles), engine)
    sides = Sides(
        exported=exported,
        offline=records,
        online_known=online is not None,
        online_writers=online_writers,
        offline_writers=offline_writers,
        heads=heads_of(online, {bundle.label for bundle in exported}) if online is not None else {},
    )
    report = compared(arrived, sides)
    signed = signed_report(report, session.keystore.identity.id_sign)
    if out is not None:
        out.write_text(json.dumps(signed, indent=1, sort_keys=True), "utf-8")

    def human() -> None:
        for stream in report.data["streams"]:
            output.fields(stream.items())
        output.fields(
            (name, f"{row['verdict']} {row['first'] or ''}") for name, row in report.data["invariants"].items()
        )

    output.result(signed, human)
    if report.has_bad_evidence:
        first = report.data["invariants"]["J1"]["first"]
        raise Fail(
            "AGB.RECEIPT_SIG",
            "an imported event has no good origin",
            str(first),
            "keep both logs as evidence",
        )
    if not report.is_clean:
        raise Fail(
            "AGB.GAPS",
            "the two zones of the bridge do not agree",
            "the report above lists what is missing, doubled, incomplete or refused",
            "carry the missing bundles again, then reconcile once more",
        )


def _arrived(session: CliSession, offline: str, identities: Any, engine: str) -> "Arrived":
    from veen.log.keys import keys_for_tasks
    from veen.products.airgap.reconciling import Offline, arrived_in

    place = Offline(uri=offline, identities=identities)
    keyring = session.keystore.secrets.keyring
    if engine == "python":
        return arrived_in(place, keyring)
    from veen.products.airgap.on_spark import arrived_on_spark
    from veen.spark.session import spark_session

    with keys_for_tasks(keyring) as key_file:
        return arrived_on_spark(spark_session("veen bridge reconcile"), place, key_file)


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
    """The seven links of one event: author, receipt, checkpoint, bundle, both audit logs, import.

    MSG_ID is that of the origin.

    \b
    veen bridge evidence 3f…9a --bundles /srv/bridge/imported --offline /srv/z2 --trust trust.toml --identity auditor
    """
    from veen.products.airgap.evidence import links_of
    from veen.products.airgap.sources import bundle_paths
    from veen.products.airgap.trust import TrustList

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
        records.summary({"msg_id": msg_id, "broken": sum(link.holds is False for link in links)})
    broken = next((link for link in links if link.holds is False), None)
    if broken is not None:
        raise Fail(
            "AGB.GAPS",
            "the chain of evidence has a gap",
            f"{broken.name}: {broken.what}",
            "reconcile the two zones",
        )
