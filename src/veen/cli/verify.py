"""`veen verify`: is this what it claims to be? One verb for any artefact, whose kind is told from its content."""

from pathlib import Path

import click

from veen.cli.files import hex32, read_object
from veen.cli.output import Exit, Fail, Output, output_options
from veen.cli.verifying import told_checks, verified

__all__ = ["verify"]

_OBJECT = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_ANYTHING = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("file", type=_ANYTHING)
@click.option("--hub-pk", type=hex32, multiple=True, help="A hub key you trust, in hex. Repeat after a key rotation.")
@click.option("--with", "related", type=_OBJECT, multiple=True, help="Another object the check needs. Repeatable.")
@click.option("--witness", type=hex32, multiple=True, help="A witness that must have signed the CHECKPOINT.")
@click.option("--root", type=hex32, help="A root you trust on other grounds; goes with --size.")
@click.option("--size", type=click.IntRange(min=1), help="How many entries the root stands for.")
@click.option("--seq", type=click.IntRange(min=1), help="The stream_seq a proof is about; default: the last entry.")
@output_options
def verify(
    output: Output,
    file: Path,
    hub_pk: tuple[bytes, ...],
    related: tuple[Path, ...],
    witness: tuple[bytes, ...],
    root: bytes | None,
    size: int | None,
    seq: int | None,
) -> None:
    """Verify whatever FILE is: MSG, RECEIPT, CHECKPOINT, proof, token, control record, evidence of equivocation; the
    data directory of a hub; or what `veen id export DIR` wrote.

    Objects are CBOR, its JSON form, or hex; "-" reads standard input. Says which checks were made. Exit code 1
    means that the evidence is bad, 2 that something needed for the check was not given.

    \b
    veen verify receipt.cbor --hub-pk 8a88e3dd…
    veen verify proof.cbor --with receipt.cbor --hub-pk 8a88e3dd…
    veen verify consistency.json --with old.cbor --with new.cbor --hub-pk 8a88e3dd…
    veen verify ./hub
    """
    if (root is None) != (size is None):
        raise click.UsageError("--root and --size go together")
    if file.is_dir():
        if hub_pk or related or witness or root is not None or seq is not None:
            raise click.UsageError("a directory brings all that its check needs: leave out the other options")
        _verify_directory(output, file)
        return
    from veen.core.checks import Given

    data, found = read_object(file, exit_code=Exit.BAD_EVIDENCE)
    given = Given(
        hub_pks=hub_pk,
        witness_pks=witness,
        related=tuple(read_object(path, exit_code=Exit.BAD_EVIDENCE)[1].obj for path in related),
        root=root,
        tree_size=size,
        stream_seq=seq,
    )
    told_checks(output, file, data, found.obj, verified(file, found.obj, given))


def _verify_directory(output: Output, directory: Path) -> None:
    from veen.client.setfiles import MANIFEST
    from veen.storage import layout

    if (directory / MANIFEST).is_file():
        _verify_set(output, directory)
    elif (directory / layout.IDENTITY).is_file() or (directory / layout.LOG).is_dir():
        from veen.cli.hubdata import check_data

        check_data(output, directory)
    else:
        raise Fail(
            Exit.USAGE,
            f"{directory}: nothing that can be verified",
            "it is neither the data directory of a hub nor an exported identity",
            "give a file, a data directory, or what `veen id export` wrote",
            "E.USAGE",
        )


def _verify_set(output: Output, directory: Path) -> None:
    """Every byte of an exported set, without its passphrase (D-72)."""
    from veen.client.errors import PortableSetInvalid
    from veen.client.portability import check_set
    from veen.storage.fs import OsFs

    try:
        with output.progress("verifying"):
            found = check_set(OsFs(directory.absolute()))
    except PortableSetInvalid as exc:  # here it is evidence that is judged, not something that is imported
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{directory}: verification FAILED",
            str(exc),
            "copy the set again from its source",
            "E.VERIFY",
        ) from exc
    data = {
        "ok": True,
        "kind": "exported identity",
        "name": found.card.name,
        "card_id": found.card.card_id,
        "files": len(found.manifest.files),
        "tokens": len(found.tokens),
        "labels": len(found.states),
        "entries": found.entries,
        "checkpoints": found.checkpoints,
        "attachments": found.attachments,
        "hub_sigs_checked": found.hub_sigs_checked,
    }

    def human() -> None:
        click.echo(f"exported identity verified: {directory}")
        output.fields(data.items())

    output.result(data, human)
