"""`veen verify`: is this object what it claims to be?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.files import OBJECT_FILE, hex32, read_object
from veen.cli.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.core.checks import MissingInput

__all__ = ["verify"]


@click.command()
@click.argument("file", type=OBJECT_FILE)
@click.option("--hub-pk", type=hex32, multiple=True, help="A hub key you trust, in hex. Repeat after a key rotation.")
@click.option("--with", "related", type=OBJECT_FILE, multiple=True, help="Another object the check needs. Repeatable.")
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
    """Verify the MSG, RECEIPT, CHECKPOINT, proof, token, control record or equivocation in FILE.

    FILE holds CBOR, its JSON form, or hex; "-" reads standard input. Says which checks were made. Exit code 1
    means that the evidence is bad, 2 that something needed for the check was not given.

    \b
    veen verify receipt.cbor --hub-pk 8a88e3dd…
    veen verify proof.cbor --with receipt.cbor --hub-pk 8a88e3dd…
    veen verify consistency.json --with old.cbor --with new.cbor --hub-pk 8a88e3dd…
    """
    from veen.core.checks import Given, MissingInput, check
    from veen.core.errors import VeenError

    if (root is None) != (size is None):
        raise click.UsageError("--root and --size go together")
    data, found = read_object(file, exit_code=Exit.BAD_EVIDENCE)
    given = Given(
        hub_pks=hub_pk,
        witness_pks=witness,
        related=tuple(read_object(path, exit_code=Exit.BAD_EVIDENCE)[1].obj for path in related),
        root=root,
        tree_size=size,
        stream_seq=seq,
    )
    try:
        checks = check(found.obj, given)
    except MissingInput as exc:
        raise Fail(Exit.USAGE, f"{file}: cannot be verified yet", str(exc), _missing_hint(exc), "E.USAGE") from exc
    except VeenError as exc:
        raise Fail(Exit.BAD_EVIDENCE, f"{file}: verification FAILED", str(exc), exc.hint, "E.VERIFY") from exc

    def human() -> None:
        click.echo(f"{found.obj.KIND} verified: {file}")
        for line in checks:
            click.echo(f"  ok  {line}")

    output.result({"ok": True, "kind": found.obj.KIND, "bytes": len(data), "checks": checks}, human)


def _missing_hint(exc: "MissingInput") -> str:
    return "add --hub-pk HEX" if "public key" in str(exc) else "add it by --with FILE (or --root HEX --size N)"
