"""`veen hub key`: create, show, rotate, verify-rotation. Private keys never leave their files."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.app import LazyGroup
from veen.cli.hub.common import ACCEPT_CLOCK, DATA_DIR, HUB_FLAGS, holder_of, open_directory, open_hub, pin_for_clients
from veen.cli.shared import options
from veen.cli.shared.entries import when
from veen.cli.shared.failures import failing_as
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Fail, Output, output_options

if TYPE_CHECKING:
    from veen.client.transport.hubapi import HubApi
    from veen.core.objects.identity import HubIdentity

key = LazyGroup("key", help="Create, show and rotate the keys of a hub.")


@key.verb("create", "Make the identity of a new hub.")
@click.option("--data-dir", type=DATA_DIR, help="New data directory to give an identity.")
@click.option("--keys-dir", type=DATA_DIR, help="New directory for a private key alone, for a hub with keys_dir.")
@output_options
def create(output: Output, data_dir: Path | None, keys_dir: Path | None) -> None:
    """Make the identity of a new hub before its first start, as an authority hub needs it.

    With --keys-dir only a key is written: the next one for a rotation, or the root of an ephemeral hub, whose clients
    pin it as `root_pin` says. The first key of a hub needs a certificate too: `veen hub init`.
    """
    if (data_dir is None) == (keys_dir is None):
        raise click.UsageError("give --data-dir or --keys-dir")
    from veen.core.objects.identity import HubIdentity
    from veen.core.objects.trusted_root import PinnedKey

    if data_dir is not None:
        identity = _create_identity(data_dir)
    else:
        assert keys_dir is not None  # noqa: S101 - one of the two was given
        with failing_as("the identity cannot be created"):
            identity = HubIdentity.first(_write_key(keys_dir), valid_from=int(time.time()))
    data = {"hub_pk": f"ed25519:{identity.current.hub_pk.hex()}", "hub_id": identity.hub_id.hex()}
    if keys_dir is not None:  # what the clients of an ephemeral hub pin
        data["root_pin"] = PinnedKey(identity.current.hub_pk, is_root=True).to_text()
    output.result(data)


def _create_identity(data_dir: Path) -> "HubIdentity":
    from veen.hub.process.startup import data_fs
    from veen.storage.keys import identity as identities

    with failing_as("the identity cannot be created"):
        fs = data_fs(data_dir)
        with fs.lock():
            return identities.create(fs, os.urandom(32), int(time.time())).identity


def _write_key(keys_dir: Path) -> bytes:
    """Write a private key file and nothing else."""
    from veen.core.crypto.ed25519 import SigningKey
    from veen.storage.keys.identity import write_private_key

    private = SigningKey(os.urandom(32))
    write_private_key(keys_dir, private)
    return private.public


@click.command()
@click.option("--data-dir", type=DATA_DIR, help="New data directory to give an identity.")
@click.option("--keys-dir", type=DATA_DIR, help="New directory for key and birth certificate, for a hub with keys_dir.")
@click.option("--valid", default="24h", show_default=True, help="Time within which the first start must happen.")
@click.option("--reuse-key", is_flag=True, help="Certify the key in --keys-dir. Only if no hub ever ran with it.")
@output_options
def init(output: Output, data_dir: Path | None, keys_dir: Path | None, valid: str, reuse_key: bool) -> None:
    """Make a new hub: its key, and a certificate with which that key may begin a log in an empty data directory.

    Without the certificate a hub with a configured key does not start over an empty directory: a key that signed a log
    before would sign position 1 again and prove the hub dishonest.

    \b
    veen hub init --keys-dir ./secret
    veen hub start --keys-dir ./secret --data-dir ./hub
    """
    if (data_dir is None) == (keys_dir is None):
        raise click.UsageError("give --data-dir or --keys-dir")
    if data_dir is not None:
        if reuse_key:
            raise click.UsageError("--reuse-key requires --keys-dir")
        identity, not_after = _create_identity(data_dir), None
    else:
        assert keys_dir is not None  # noqa: S101 - one of the two was given
        not_after = int(time.time()) + _seconds(valid, "--valid")
        with failing_as("the hub cannot be created"):
            identity = _init_keys(keys_dir, not_after, reuse_key)
    data: dict[str, Any] = {"hub_pk": f"ed25519:{identity.current.hub_pk.hex()}", "hub_id": identity.hub_id.hex()}
    if not_after is not None:
        data["first_start_until"] = not_after
    output.result(data, lambda: output.fields((name, str(value)) for name, value in data.items()))


def _init_keys(keys_dir: Path, not_after: int, reuse_key: bool) -> "HubIdentity":
    from veen.core.crypto.ed25519 import SigningKey
    from veen.core.objects.identity import HubIdentity
    from veen.io.errors import StorageError
    from veen.storage.keys.identity import KeyDirFs, read_key, write_birth, write_private_key

    names = sorted(path.name for path in keys_dir.glob("*.key"))
    if reuse_key:
        if len(names) != 1:
            raise StorageError(f"{keys_dir}: holds {len(names)} private keys, --reuse-key takes exactly one")
        private = read_key(KeyDirFs(keys_dir, keys_dir), names[0].removesuffix(".key"))
    elif names:
        raise StorageError(f"{keys_dir}: holds a private key already; give an empty directory, or see --reuse-key")
    else:
        private = SigningKey(os.urandom(32))
        write_private_key(keys_dir, private)
    write_birth(keys_dir, private, not_after)
    return HubIdentity.first(private.public, valid_from=int(time.time()))


@key.verb("show", "The public keys of a hub and when they are valid.")
@HUB_FLAGS
@click.option("--only-pin", is_flag=True, help="Print only the pin for clients: the first key, or the root key.")
@output_options
def show(output: Output, data_dir: Path | None, only_pin: bool, **flags: str | None) -> None:
    """Show hub_id and all keys of a data directory, or of the hub that --hub or the context names.

    The signature over the identity is checked. That it is the hub you mean shows only a comparison with the key that
    its operator published.

    \b
    veen hub key show ./hub
    veen hub key show ./hub --only-pin
    veen hub key show --hub https://hub.example.org
    """
    from veen.storage.keys.identity import read_identity, read_root

    root_pk: bytes | None = None
    if data_dir is not None:
        with failing_as(f"{data_dir}: the identity cannot be shown"):
            fs = open_directory(data_dir)
            identity, root_pk = read_identity(fs), read_root(fs)
        where, signed = str(data_dir), True
    else:
        with open_hub(output, data_dir=None, **flags) as hub:
            where, (identity, signed) = hub.url, _fetch_identity(hub)
    data: dict[str, Any] = {
        "hub_id": identity.hub_id.hex(),
        "hub_keys": [{**entry.to_json(), "hub_pk": f"ed25519:{entry.hub_pk.hex()}"} for entry in identity.keys],
    }
    data |= {"from": where, "signed_by_own_key": signed and root_pk is None}
    pinned = pin_for_clients(identity, root_pk)
    if root_pk is not None:
        data["root_pin"] = pinned.to_text()
    if signed:
        data["pin"] = pinned.to_text()
    if only_pin:
        if not signed:
            raise Fail(
                "E.LOCAL.PIN",
                f"{where}: the pin is not known",
                "a root key signs this identity, and the hub does not say which",
                "ask on the hub's machine: veen hub key show DIR --only-pin",
            )
        output.result({"pin": data["pin"]}, lambda: output.line(data["pin"]))
        return

    def human() -> None:
        output.line(f"hub_id {identity.hub_id.hex()}")
        if root_pk is not None:
            output.line(f"signed by {data['root_pin']}")
        elif not signed:
            output.line("signed by a root key, which the hub cannot vouch for", "warn")
        rows = [
            (f"ed25519:{entry.hub_pk.hex()}", f"from {when(entry.valid_from)} until {until}")
            for entry in identity.keys
            for until in [when(entry.valid_until) if entry.valid_until else "further notice"]
        ]
        output.fields(rows)

    output.result(data, human)


def _fetch_identity(hub: "HubApi") -> "tuple[HubIdentity, bool]":
    """Return the identity that a hub states, and True if its newest key signed it. Raise Fail for a contradiction."""
    from veen.core.errors import SignatureError, VerifyError

    answer = hub.identity()
    try:
        identity = answer.to_identity()
        try:
            identity.verify(answer.sig)
        except SignatureError:
            return identity, False
    except VerifyError as exc:
        raise Fail(
            "E.DIVERGED.FOREIGN_KEY",
            f"{hub.url}: contradicts itself",
            str(exc),
            "do not use this hub before its operator has explained it",
        ) from exc
    return identity, True


@key.verb("rotate", "Add a new key; the old one signs until the overlap ends.")
@HUB_FLAGS
@click.option(
    "--overlap", default="1d", show_default=True, help="Time for which the old key stays valid beside the new one."
)
@click.option(
    "--request-id",
    type=hex32,
    help="Id of this request, 64 hex digits: repeated with the same id, it adds no second key. Default: a new one.",
)
@ACCEPT_CLOCK
@output_options
def rotate(
    output: Output,
    data_dir: Path | None,
    overlap: str,
    request_id: bytes | None,
    accept_clock: bool,
    **flags: str | None,
) -> None:
    """Add a new key. Receipts of old keys stay verifiable forever; hub_id and labels do not change.

    A running hub does it itself, and the new key signs from some seconds later on. On its own machine it is asked
    through its local door; by its URL, an administrator's --token-file is needed.

    \b
    veen hub key rotate ./hub --overlap 7d
    veen hub key verify-rotation ./hub
    """
    if (data_dir is None) == (flags["hub"] is None):
        raise click.UsageError("give the data directory or --hub")
    seconds = _seconds(overlap, "--overlap")
    request_id = request_id or os.urandom(32)
    if data_dir is not None and holder_of(open_directory(data_dir)) is None:
        data = _rotate_at_rest(data_dir, seconds, request_id, accept_clock)
    else:
        with open_hub(output, data_dir=data_dir, **flags) as running:
            _, rotation = running.rotate_key(seconds, request_id=request_id)
            data = _rotation_data(running.identity().hub_id.hex(), rotation.hub_pk.hex(), rotation.valid_from)
    data["request_id"] = request_id.hex()
    output.result(data, lambda: output.fields((name, str(value)) for name, value in data.items()))
    if data_dir is not None:
        output.next(f"veen hub key verify-rotation {data_dir}")


def _seconds(text: str, option: str) -> int:
    from veen.hub.process.settings import DURATION

    try:
        seconds: int = DURATION.read(text, True, Path())
    except ValueError as exc:
        raise click.UsageError(f"{option}: {exc}") from exc
    return seconds


def _rotate_at_rest(data_dir: Path, overlap_seconds: int, request_id: bytes, accept_clock: bool) -> dict[str, Any]:
    from veen.hub.api.rotation import rotate_at_rest

    with failing_as("the key cannot be rotated"):
        identity = rotate_at_rest(
            open_directory(data_dir),
            int(time.time()),
            overlap_seconds,
            request_id=request_id,
            accept_clock=accept_clock,
        )
    return _rotation_data(identity.hub_id.hex(), identity.current.hub_pk.hex(), identity.current.valid_from)


def _rotation_data(hub_id: str, hub_pk: str, valid_from: int) -> dict[str, Any]:
    return {"hub_id": hub_id, "hub_pk": f"ed25519:{hub_pk}", "valid_from": valid_from}


@key.verb("verify-rotation", "Check that each key was introduced by one before it.")
@click.option("--data-dir", type=DATA_DIR, help=options.HUB_DIR)
@output_options
def verify_rotation(output: Output, data_dir: Path | None) -> None:
    """Check that a record signed by an older key introduces each key, and that the identity lists just these.

    The hub may run: a rotation is checked from the moment at which it is reported.

    \b
    veen hub key verify-rotation ./hub
    """
    from veen.hub.api.rotation import check_rotations

    if data_dir is None:
        raise click.UsageError("give the data directory")
    with failing_as(f"{data_dir}: the rotation does not verify"):
        checks = check_rotations(open_directory(data_dir))

    def human() -> None:
        for line in checks:
            output.line(f"  ok  {line}")

    output.result({"ok": True, "checks": checks}, human)


@key.verb("repair", "Find and repair two rotations that ran at the same time.")
@click.option("--data-dir", type=DATA_DIR, help=options.HUB_DIR)
@click.option("--dry-run", is_flag=True, help=options.DRY_RUN)
@output_options
def repair(output: Output, data_dir: Path | None, dry_run: bool) -> None:
    """Find two rotations that retire one key, and make the identity go on with one of them. The hub must be stopped.

    Releases before request ids could write such a pair, after which a hub does not start. The log is read for
    signatures of both keys. A key that signed nothing is given up: its private key is removed, and its record stays in
    the control journal without effect. If both keys signed something, nothing is changed.

    \b
    veen hub key repair ./hub --dry-run
    veen hub key repair ./hub
    """
    from veen.storage.maintenance import rotation_repair as storage

    if data_dir is None:
        raise click.UsageError("give the data directory")
    with failing_as(f"{data_dir}: the rotations cannot be repaired"):
        fs = open_directory(data_dir)
        with fs.lock():
            conflicts = storage.open_conflicts(fs)
            unrepaired = any(conflict.choice is None for conflict in conflicts)
            if conflicts and (unrepaired or not dry_run):
                storage.repair_rotations(fs, conflicts)
    rows: list[dict[str, Any]] = [
        {
            "retired": f"ed25519:{conflict.retired_pk.hex()}",
            "keys": [
                {
                    "hub_pk": f"ed25519:{candidate.body.hub_pk.hex()}",
                    "control_seq": candidate.record.seq,
                    "signatures": candidate.signatures,
                    "chosen": candidate is conflict.choice,
                }
                for candidate in conflict.candidates
            ],
            "clients_follow": conflict.is_followed,
        }
        for conflict in conflicts
    ]

    def human() -> None:
        for row in rows:
            output.line(f"two rotations retire {row['retired']}")
            for candidate in row["keys"]:
                state = "in force" if candidate["chosen"] else "void"
                output.line(f"  {candidate['hub_pk']}: {candidate['signatures']} signatures, {state}")
            if not row["clients_follow"]:
                output.line("  clients that pinned an older key must pin the key that is in force", "warn")
        if not rows:
            output.line("no two rotations retire one key")
        else:
            output.line("nothing was changed" if dry_run else "repaired")

    output.result({"conflicts": rows, "repaired": bool(rows) and not dry_run}, human)
