"""`veen verify`: one verb for any artefact, whose kind is recognised by its content.

`veen inspect`: the contents of a wire object, without keys.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared import options
from veen.cli.shared.command import CliSession, home_options
from veen.cli.shared.connecting import POLICY, read_policy_file
from veen.cli.shared.files import OBJECT_FILE, hex32, read_object
from veen.cli.shared.output import Exit, Fail, Output, output_options
from veen.cli.shared.pinning import PinnedKeys, resolve_pin
from veen.cli.shared.verifying import check_object, resolve_keys, show_checks, show_verdict, verdict_json
from veen.core.verdict import Coverage, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.core.checks import Given
    from veen.core.wire import Wire


@click.command()
@click.argument("file", type=OBJECT_FILE)
@output_options
def inspect(output: Output, file: Path) -> None:
    """Show the fields of the wire object in FILE, and what can be computed from them without keys.

    FILE holds CBOR, its JSON form, or hex; "-" reads standard input.
    """
    from veen.cli.shared.wire_tree import derive_fields, fields_of

    data, recognised = read_object(file, exit_code=Exit.USAGE)
    derived = derive_fields(recognised.obj)
    document: dict[str, Any] = {
        "kind": recognised.obj.KIND,
        "encoding": recognised.encoding,
        "bytes": len(data),
        "also_fits": list(recognised.also),
        "object": recognised.obj.to_json(),
        "fields": dict(fields_of(recognised.obj)),
        "derived": derived,
    }

    def human() -> None:
        also = f" (same shape: {', '.join(recognised.also)})" if recognised.also else ""
        output.line(f"{recognised.obj.KIND}{also}, {len(data)} bytes as {recognised.encoding.upper()}")
        output.fields(fields_of(recognised.obj))
        if derived:
            output.line("computed from these")
            output.fields(derived.items())

    output.result(document, human)


_OBJECT = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


class _Artefact(click.Path):
    """A file or directory; one that is not there may be a stream, which is checked whenever it is read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as exc:
            if "/" in str(value) or Path(str(value)).suffix:
                raise
            hint = "veen verify --help; a stream is verified whenever it is read: veen stream STREAM"
            exc.hint = hint  # type: ignore[attr-defined]  # `run_line` prints it
            raise


_ANYTHING = _Artefact(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("file", type=_ANYTHING)
@click.option("--hub-pk", type=hex32, multiple=True, help=options.HUB_PK)
@click.option("--with", "related", type=_OBJECT, multiple=True, help=options.WITH)
@click.option("--witness", type=hex32, multiple=True, help=options.WITNESS)
@click.option("--root", type=hex32, help=options.ROOT)
@click.option("--size", type=click.IntRange(min=1), help=options.TREE_SIZE)
@click.option("--seq", type=click.IntRange(min=1), help=options.SEQ)
@options.keep_former(
    "--witness-policy", "policy", former="--policy", type=POLICY, metavar="FILE", help=options.WITNESS_POLICY
)
@click.option("--no-pin", is_flag=True, help=options.NO_PIN)
@home_options
def verify(
    output: Output,
    session: CliSession,
    file: Path,
    hub_pk: tuple[bytes, ...],
    related: tuple[Path, ...],
    witness: tuple[bytes, ...],
    root: bytes | None,
    size: int | None,
    seq: int | None,
    policy: Path | None,
    no_pin: bool,
) -> None:
    """Verify whatever FILE is: an evidence file; MSG, RECEIPT, CHECKPOINT, proof, token, control record, evidence of
    equivocation; the data directory of a hub; or what `veen id export DIR` wrote.

    It is judged by --hub-pk, or else by the pin of the context; an export by --hub-pk. Of an evidence file or a
    directory, a result without a key begins with "keys not pinned": it shows that all fits together, and not whose it
    is.

    Objects are CBOR, its JSON form, or hex; "-" reads standard input. The output lists the checks and what they cover.
    Exit code 1 means that the evidence is bad, 6 that the verdict is incomplete (a policy is not met, or the file is of
    another hub than that of the context in use), 2 that something needed for the check was not given.

    \b
    veen verify orders.veen-evidence --hub-pk 8a88e3dd…
    veen verify orders.veen-evidence --hub-pk 8a88e3dd… --witness-policy witnesses.policy
    veen verify receipt.cbor --hub-pk 8a88e3dd…
    veen verify proof.cbor --with receipt.cbor --hub-pk 8a88e3dd…
    veen verify consistency.json --with old.cbor --with new.cbor --hub-pk 8a88e3dd…
    veen verify ./hub
    """
    if (root is None) != (size is None):
        raise click.UsageError("--root and --size go together")
    if file.is_dir():
        if policy is not None or related or witness or root is not None or seq is not None:
            raise click.UsageError("the check of a directory takes no options but --hub-pk: leave out the others")
        _verify_directory(output, session, file, hub_pk, no_pin)
        return
    from veen.cli.evidence.files import read_evidence, verify_evidence_file
    from veen.core.checks import Given
    from veen.core.evidence_file import MAGIC, is_evidence

    if str(file) != "-":
        with file.open("rb") as opened:
            begins_as_evidence = is_evidence(opened.read(len(MAGIC)))
        if begins_as_evidence:
            if related or witness or root is not None or seq is not None:
                raise click.UsageError("the check of an evidence file takes no related objects: leave them out")
            witness_policy = None if policy is None else read_policy_file(policy)
            verify_evidence_file(output, session, file, read_evidence(file), hub_pk, no_pin, witness_policy)
            return
    if policy is not None:
        raise click.UsageError(
            "--witness-policy is for an evidence file; for a note: veen witness policy check POLICY --note FILE"
        )
    data, recognised = read_object(file, exit_code=Exit.BAD_EVIDENCE)
    inputs = Given(
        hub_pks=hub_pk,
        witness_pks=witness,
        related=tuple(read_object(path, exit_code=Exit.BAD_EVIDENCE)[1].obj for path in related),
        root=root,
        tree_size=size,
        stream_seq=seq,
    )
    checks, keys = _checks(session, file, recognised.obj, inputs, no_pin)
    show_checks(output, file, data, recognised.obj, checks, trusted=keys)


def _checks(
    session: CliSession, file: Path, obj: "Wire", inputs: "Given", no_pin: bool
) -> tuple[list[str], tuple[bytes, ...]]:
    """Return the checks that were made, and the hub keys that were used: those given, else the pin of the context."""
    from veen.core.checks import MissingInput, check
    from veen.core.errors import VeenError

    try:
        return check(obj, inputs), inputs.hub_pks
    except MissingInput:
        if inputs.hub_pks or no_pin or not (keys := resolve_keys(session, ())):
            return check_object(file, obj, inputs), inputs.hub_pks
    except VeenError:
        return check_object(file, obj, inputs), inputs.hub_pks
    try:
        return check_object(file, obj, replace(inputs, hub_pks=keys)), keys
    except Fail as fail:
        if fail.code == "E.VERIFY":
            fail.hint = f"it was judged by the pin of {session.settings.hub_pk.origin}; of another hub: --hub-pk HEX"
        raise


def _verify_directory(
    output: Output, session: CliSession, directory: Path, hub_pks: tuple[bytes, ...], no_pin: bool
) -> None:
    from veen.client.portable.set_files import MANIFEST
    from veen.storage import layout

    if (directory / MANIFEST).is_file():
        _verify_set(output, directory, hub_pks)
    elif (directory / layout.IDENTITY).is_file() or (directory / layout.LOG).is_dir():
        from veen.cli.hub.data import check_data

        check_data(output, directory, _resolve_pinned(session, hub_pks, no_pin))
    else:
        raise Fail(
            "E.USAGE",
            f"{directory}: nothing that can be verified",
            "it is neither the data directory of a hub nor an exported identity",
            "give a file, a data directory, or what `veen id export` wrote",
        )


def _resolve_pinned(session: CliSession, hub_pks: tuple[bytes, ...], no_pin: bool) -> PinnedKeys:
    from veen.core.objects.trusted_root import TrustedKeys

    if not hub_pks:
        return resolve_pin(session, None, no_pin)
    if no_pin:
        raise click.UsageError("give one of --hub-pk and --no-pin")
    return PinnedKeys(TrustedKeys(hub_pks=hub_pks), "--hub-pk")


def _verify_set(output: Output, directory: Path, hub_pks: tuple[bytes, ...]) -> None:
    """Verify every byte of an exported set, without its passphrase (D-72)."""
    from veen.client.errors import PortableSetInvalid
    from veen.client.portable.portability import check_set
    from veen.io.local import OsFs

    try:
        with output.progress("verifying"):
            portable = check_set(OsFs(directory.absolute()), hub_pks)
    except PortableSetInvalid as exc:  # here it is evidence that is judged, not something that is imported
        raise Fail(
            "E.VERIFY", f"{directory}: verification FAILED", str(exc), "copy the set again from its source"
        ) from exc
    used = hub_pks or tuple(key.hub_pk for hub in portable.hubs.values() for key in hub.keys)
    origin = "--hub-pk" if hub_pks else "the export itself"
    identity = ", ".join(f"ed25519:{key.hex()}" for key in hub_pks) or None
    files = len(portable.manifest.files)
    verdict = Verdict.of(
        [Coverage(log=f"files of {directory}", read=files, head=files, stated_by=StatedBy.FILE, identity=identity)]
    )
    data = {
        "keys": "pinned" if hub_pks else "not pinned",
        "hub_pks": [f"ed25519:{hub_pk.hex()}" for hub_pk in used],
        "hub_pks_origin": origin if used else None,
        **verdict_json(verdict),
        "kind": "exported identity",
        "name": portable.card.name,
        "card_id": portable.card.card_id,
        "files": files,
        "tokens": len(portable.tokens),
        "labels": len(portable.states),
        "entries": portable.entries,
        "checkpoints": portable.checkpoints,
        "attachments": portable.attachments,
        "hub_sigs_checked": portable.hub_sigs_checked,
    }

    def human() -> None:
        if not hub_pks:
            what = f"the keys come from {origin}" if used else "no hub key is in the export, so no hub_sig was checked"
            output.line(f"keys not pinned: {what}", "warn")
        output.line(f"exported identity verified: {directory}", good="exported identity verified")
        for hub_pk in used:
            output.line(f"hub key ed25519:{hub_pk.hex()} (from {origin})")
        show_verdict(output, verdict)
        output.fields((name, value) for name, value in data.items() if name not in ("keys", "hub_pks", "verdict"))

    output.result(data, human)
