"""`veen hub key`: create, show, rotate, verify-rotation. Private keys never leave their files."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.app import LazyGroup
from veen.cli.clictx import FILE
from veen.cli.failures import told
from veen.cli.hubcommon import DATA_DIR, existing, holder_of
from veen.cli.output import Output, output_options

if TYPE_CHECKING:
    from veen.cli.hubclient import HubClient

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
@output_options
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
@output_options
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
@click.option("--data-dir", type=DATA_DIR, help="The data directory of a hub on this machine, stopped or running.")
@click.option("--hub", help="The URL of a running hub, instead.")
@click.option("--token-file", type=FILE, help="A file with an administrator's bearer token, for a running hub.")
@click.option("--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM).")
@click.option("--overlap", default="1d", show_default=True, help="How long the old key stays valid beside the new one.")
@output_options
def rotate(
    output: Output, data_dir: Path | None, hub: str | None, token_file: str | None, ca_file: str | None, overlap: str
) -> None:
    """Add a new key. Receipts of old keys stay verifiable for ever; hub_id and labels do not change.

    A running hub does it itself: an administrator asks it, and the new key signs from some seconds later on.
    """
    from veen.cli.hubclient import HubClient

    if (data_dir is None) == (hub is None):
        raise click.UsageError("give --data-dir or --hub")
    seconds = _seconds(overlap)
    url = hub
    if data_dir is not None:
        holder = holder_of(existing(data_dir))
        url = holder.url if holder is not None else None
    if url is None:
        assert data_dir is not None  # noqa: S101 - one of the two was given
        data = _rotate_at_rest(data_dir, seconds)
    else:
        ca, token = (Path(name) if name else None for name in (ca_file, token_file))
        data = _rotate_live(HubClient(url, ca, token), seconds)
    output.result(data, lambda: output.fields((name, str(value)) for name, value in data.items()))


def _seconds(overlap: str) -> int:
    from veen.hub.settings import DURATION

    try:
        seconds: int = DURATION.read(overlap, True, Path())
    except ValueError as exc:
        raise click.UsageError(f"--overlap: {exc}") from exc
    return seconds


def _rotate_at_rest(data_dir: Path, overlap_seconds: int) -> dict[str, Any]:
    from veen.hub.rotation import rotate_at_rest

    with told("the key cannot be rotated"):
        identity = rotate_at_rest(existing(data_dir), int(time.time()), overlap_seconds)
    return _rotated(identity.hub_id.hex(), identity.current.hub_pk.hex(), identity.current.valid_from)


def _rotate_live(client: "HubClient", overlap_seconds: int) -> dict[str, Any]:
    from veen.core.control import ControlRecord, KeyRotate

    answer = client.post("/tooling/rotate_key", {"ver": 1, "overlap_sec": overlap_seconds})
    hub_id = client.get("/tooling/identity")["hub_id"]
    with told("the hub's answer cannot be read"):
        body = ControlRecord.from_json(answer["record"]).body
        assert isinstance(body, KeyRotate)  # noqa: S101 - what the hub was asked for
    return _rotated(hub_id, body.hub_pk.hex(), body.valid_from)


def _rotated(hub_id: str, hub_pk: str, valid_from: int) -> dict[str, Any]:
    return {"hub_id": hub_id, "hub_pk": f"ed25519:{hub_pk}", "valid_from": valid_from}


@click.command("verify-rotation")
@click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory.")
@output_options
def verify_rotation(output: Output, data_dir: Path) -> None:
    """Check that a record signed by an older key introduces each key, and that the identity lists just these."""
    from veen.hub.rotation import check_rotations

    with told(f"{data_dir}: the rotation does not verify"):
        checks = check_rotations(existing(data_dir))

    def human() -> None:
        for line in checks:
            click.echo(f"  ok  {line}")

    output.result({"ok": True, "checks": checks}, human)
