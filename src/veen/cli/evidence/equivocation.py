"""`veen equivocation`: proof that a hub told two stories: make it, show it, report it (spec §4.3, RCPT-07)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.evidence.proof import OUT
from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.text import short
from veen.cli.shared.verifying import HUB_PK, check_object, read_as, resolve_keys

if TYPE_CHECKING:
    from veen.core.objects.evidence import Equivocation, Statement

equivocation = LazyGroup("equivocation", help="Proof that a hub told two stories.")


@equivocation.verb("show", "Check proof of two stories, and show where they differ.")
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@client_options
def show(output: Output, session: CliSession, file: Path, trusted: tuple[bytes, ...]) -> None:
    """Check the evidence in FILE, and show its two statements side by side. No hub is needed.

    With --hub-pk, or a pinned key, the statements must be signed by that very hub. Exit code 1 means that the
    evidence proves nothing.
    """
    from veen.cli.shared.wire_tree import to_named
    from veen.core.checks import Given
    from veen.core.objects.evidence import Equivocation

    data, evidence = read_as(file, Equivocation)
    assert isinstance(evidence, Equivocation)  # noqa: S101 - read_as made sure
    checks = check_object(file, evidence, Given(hub_pks=resolve_keys(session, trusted)))
    rows = list(_compare_fields(evidence))
    document = {
        "ok": True,
        "bytes": len(data),
        "hub_pks": [f"ed25519:{key.hex()}" for key in evidence.hub_pks],
        "checks": checks,
        "first": to_named(evidence.first),
        "second": to_named(evidence.second),
        "differs": [name for name, left, other in rows if left != other],
    }

    def human() -> None:
        cut = output.mode is Mode.HUMAN
        output.table(
            ("field", evidence.first.KIND, evidence.second.KIND, ""),
            [
                (name, _shown(left, cut), _shown(other, cut), "" if left == other else "differs")
                for name, left, other in rows
            ],
        )
        if cut:
            for line in checks:
                output.line(f"  ok  {line}")

    output.result(document, human)


def _compare_fields(evidence: "Equivocation") -> "list[tuple[str, Any, Any]]":
    """Return the fields of both statements by name; a missing one is None."""
    first, second = dict(evidence.first.present_fields()), dict(evidence.second.present_fields())
    return [(name, first.get(name), second.get(name)) for name in dict.fromkeys((*first, *second))]


def _shown(value: Any, cut: bool) -> Any:
    return short(value) if cut and isinstance(value, bytes) else value


@equivocation.verb("report", "Pack two contradicting statements as proof, and tell the hub.")
@click.argument("files", type=OBJECT_FILE, nargs=-1, required=True)
@OUT
@HUB_PK
@click.option("--send/--no-send", "tell", default=True, help="Report it to the hub, whose operator may not know.")
@client_options
def report(
    output: Output,
    session: CliSession,
    files: tuple[Path, ...],
    out: Path | None,
    trusted: tuple[bytes, ...],
    tell: bool,
) -> None:
    """Prove by two FILES, RECEIPTs or CHECKPOINTs for one position, that the hub contradicts itself; or take the proof
    in one FILE. Then report it to the hub.

    The signatures must be the pinned hub's, or by a key that --hub-pk names. The file that --out names convinces
    anyone, offline. With --no-send neither a hub nor a passphrase is needed.

    \b
    veen equivocation report mine.cbor yours.cbor --out evidence.cbor
    veen equivocation report mine.cbor yours.cbor --no-send --hub-pk ed25519:HEX --out evidence.cbor
    veen equivocation show evidence.cbor
    """
    evidence = _evidence(session, files, trusted, tell)
    data = evidence.to_bytes()
    if out is not None:
        out.write_bytes(data)
    if tell:
        session.client().report_equivocation(evidence)
    document = {
        "ok": True,
        "bytes": len(data),
        "hub_pks": [f"ed25519:{key.hex()}" for key in evidence.hub_pks],
        "told_the_hub": tell,
        "file": None if out is None else str(out),
        "evidence": evidence.to_json(),
    }
    rows = [(name, value) for name, value in document.items() if name != "evidence"]
    output.result(document, lambda: output.fields(rows))


def _hub_keys(session: CliSession, trusted: tuple[bytes, ...], tell: bool) -> list[bytes]:
    """Return the keys whose signatures count. A report asks the hub for its rotations."""
    if tell and not trusted:
        return [key.hub_pk for key in session.client().pin.keys]
    keys = list(resolve_keys(session, trusted))
    if not keys:
        raise Fail(
            "E.USAGE",
            "no key of the hub is known, so no signature can be checked",
            "no key is pinned in the context, and --hub-pk is not given",
            "pin a key in the context, or pass --hub-pk ed25519:HEX",
        )
    return keys


def _evidence(session: CliSession, files: tuple[Path, ...], trusted: tuple[bytes, ...], tell: bool) -> "Equivocation":
    from veen.core.checks import Given
    from veen.core.errors import VerifyError
    from veen.core.objects.checkpoint import Checkpoint
    from veen.core.objects.evidence import Equivocation
    from veen.core.objects.receipt import Receipt

    objects = [read_as(file, None)[1] for file in files]
    if len(objects) == 1 and isinstance(objects[0], Equivocation):
        check_object(files[0], objects[0], Given(hub_pks=trusted))
        return objects[0]
    statements = [obj for obj in objects if isinstance(obj, (Receipt, Checkpoint))]
    if len(statements) != 2 or len(objects) != 2:
        raise click.UsageError("give one equivocation, or two of RECEIPT and CHECKPOINT")
    keys = _hub_keys(session, trusted, tell)
    try:
        return Equivocation.of(
            statements[0], statements[1], one_pk=_signer(statements[0], keys), other_pk=_signer(statements[1], keys)
        )
    except VerifyError as exc:
        raise Fail(
            "E.VERIFY", "these two prove nothing against the hub", str(exc), f"look at them: veen inspect {files[0]}"
        ) from exc


def _signer(statement: "Statement", keys: list[bytes]) -> bytes:
    """Return the key of the hub that signed; any of them if none did, for the proof to fail on."""
    from veen.core.errors import SignatureError

    for key in keys:
        try:
            statement.verify(key)
        except SignatureError:
            continue
        return key
    return keys[0]
