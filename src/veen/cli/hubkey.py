"""`veen hub key`: create, show, rotate, verify-rotation. Private keys never leave their files."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import click

from veen.cli.app import LazyGroup
from veen.cli.hubcommon import DATA_DIR, existing, told
from veen.cli.output import Output, json_option

__all__ = ["create", "key", "rotate", "show", "verify_rotation"]


class _KeyGroup(LazyGroup):
    table: ClassVar = {
        "create": ("veen.cli.hubkey:create", "Make the identity of a new hub."),
        "rotate": ("veen.cli.hubkey:rotate", "Add a new key; the old one signs until the overlap ends."),
        "show": ("veen.cli.hubkey:show", "The public keys of a hub and when they are valid."),
        "verify-rotation": ("veen.cli.hubkey:verify_rotation", "Check that each key was introduced by one before it."),
    }


@click.group(cls=_KeyGroup)
def key() -> None:
    """Create, show and rotate the keys of a hub."""


@click.command()
@click.option("--data-dir", type=DATA_DIR, help="Give this new data directory its identity.")
@click.option("--keys-dir", type=DATA_DIR, help="Only write a private key here, for a hub whose keys lie elsewhere.")
@json_option
def create(output: Output, data_dir: Path | None, keys_dir: Path | None) -> None:
    """Make the identity of a new hub before its first start, as an authority hub needs it."""
    if (data_dir is None) == (keys_dir is None):
        raise click.UsageError("give --data-dir or --keys-dir")
    from veen.core.hubkeys import HubIdentity
    from veen.hub.opening import data_fs
    from veen.storage import identity as identities

    now = int(time.time())
    with told("the identity cannot be created"):
        if data_dir is not None:
            fs = data_fs(data_dir)
            with fs.lock():
                identity = identities.create(fs, os.urandom(32), now).identity
        else:
            assert keys_dir is not None  # noqa: S101 - one of the two was given
            identity = HubIdentity.first(_write_key(keys_dir), valid_from=now)
    data = {"hub_pk": f"ed25519:{identity.current.hub_pk.hex()}", "hub_id": identity.hub_id.hex()}
    output.result(data, lambda: output.fields(data.items()))


def _write_key(keys_dir: Path) -> bytes:
    """A private key file and nothing else."""
    from veen.core.ed25519 import SigningKey
    from veen.storage.keydir import write_private_key

    private = SigningKey(os.urandom(32))
    write_private_key(keys_dir, private)
    return private.public


@click.command()
@click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory.")
@json_option
def show(output: Output, data_dir: Path) -> None:
    """Show hub_id and all keys; the signature over the identity is checked."""
    from veen.storage.identity import read_identity

    with told(f"{data_dir}: the identity cannot be shown"):
        identity = read_identity(existing(data_dir))
    data = {"hub_id": identity.hub_id.hex(), "hub_keys": [known.to_json() for known in identity.keys]}

    def human() -> None:
        click.echo(f"hub_id {identity.hub_id.hex()}")
        rows = [
            (f"ed25519:{known.hub_pk.hex()}", f"from {known.valid_from} until {known.valid_until or 'further notice'}")
            for known in identity.keys
        ]
        output.fields(rows)

    output.result(data, human)


@click.command()
@click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory; its hub must be stopped.")
@click.option("--overlap", default="1d", show_default=True, help="How long the old key stays valid beside the new one.")
@json_option
def rotate(output: Output, data_dir: Path, overlap: str) -> None:
    """Add a new key from now on. Receipts of old keys stay verifiable for ever; hub_id and labels do not change."""
    from veen.hub.rotation import rotate_at_rest
    from veen.hub.settings import DURATION

    try:
        seconds = DURATION.read(overlap, True, Path())
    except ValueError as exc:
        raise click.UsageError(f"--overlap: {exc}") from exc
    with told("the key cannot be rotated"):
        identity = rotate_at_rest(existing(data_dir), int(time.time()), seconds)
    data: dict[str, Any] = {
        "hub_id": identity.hub_id.hex(),
        "hub_pk": f"ed25519:{identity.current.hub_pk.hex()}",
        "valid_from": identity.current.valid_from,
    }
    output.result(data, lambda: output.fields((name, str(value)) for name, value in data.items()))


@click.command("verify-rotation")
@click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory.")
@json_option
def verify_rotation(output: Output, data_dir: Path) -> None:
    """Check that a record signed by an older key introduces each key, and that the identity lists just these."""
    from veen.hub.rotation import check_rotations

    with told(f"{data_dir}: the rotation does not verify"):
        checks = check_rotations(existing(data_dir))

    def human() -> None:
        for line in checks:
            click.echo(f"  ok  {line}")

    output.result({"ok": True, "checks": checks}, human)
