"""The mark of a replica, which names its primary, and the files that a replica keeps beside the log (D-78).

    replica.json   the address and the pin of the primary; there as long as the directory is a replica
    replica/       checkpoints of the primary for chunks that are about to be sealed, until they are durable

A replica has the identity of its primary and none of its keys. The mark is written before the identity, so that a
directory that is cut off while it is made starts as nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity, canonical_json, read_canonical_json
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs, target_of
from veen.storage import layout
from veen.storage.copies.unfinished import check_finished
from veen.storage.keys import identity as identities
from veen.storage.scan import read_file

_KEY_SUFFIX: Final = ".key"
_OPTIONAL: Final = ("ca_file", "token_file", "promoting")  # members that marks of earlier releases do not have


@dataclass(frozen=True, slots=True)
class ReplicaMark:
    """The primary of a replica, and its position at the last contact."""

    source: str
    pin: str
    announced: Mapping[bytes, int]  # label -> entries that the primary has and the replica did not, when it stopped
    heard_at: int = 0  # when the replica last had all that the primary had; 0: never
    ca_file: str = ""  # certificates that the primary is verified with; empty: those of the system
    token_file: str = ""  # a bearer token that may read the primary
    promoting: str = ""  # the hub.promote body that a promotion of this directory is about to journal, in hex

    def to_bytes(self) -> bytes:
        announced = {label.hex(): size for label, size in self.announced.items()}
        members = {"ver": 1, "source": self.source, "pin": self.pin, "announced": announced, "heard_at": self.heard_at}
        for name in _OPTIONAL:
            if value := getattr(self, name):
                members[name] = value
        return canonical_json(members)


def read_mark(fs: Fs) -> ReplicaMark | None:
    """Read the mark; return None if the directory is not a replica."""
    if not fs.exists(layout.REPLICA):
        return None
    data = read_file(fs, layout.REPLICA)
    try:
        value: Any = read_canonical_json(data, layout.REPLICA, max_bytes=len(data))
        announced = {bytes.fromhex(label): int(size) for label, size in value["announced"].items()}
        options = {name: str(value[name]) for name in _OPTIONAL if name in value}
        return ReplicaMark(str(value["source"]), str(value["pin"]), announced, int(value["heard_at"]), **options)
    except (FormatError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptError(layout.REPLICA, 0, f"not the mark of a replica: {exc}") from exc


def write_mark(fs: Fs, mark: ReplicaMark) -> None:
    fs.replace(layout.REPLICA, mark.to_bytes())


def begin_replica(fs: Fs, mark: ReplicaMark, identity: HubIdentity, sig: bytes, root_pk: bytes | None) -> None:
    """Make an empty directory, or a copy of this hub without keys, a replica; the caller holds its lock."""
    check_finished(fs)
    if identities.exists(fs):
        if identities.read_identity(fs).hub_id != identity.hub_id:
            raise StorageError(f"{layout.IDENTITY}: this directory belongs to another hub than the primary")
        if read_mark(fs) is None:
            if any(name.endswith(_KEY_SUFFIX) for name in fs.list(layout.KEYS)):
                raise StorageError(
                    f"{layout.KEYS}: this directory has private keys; a replica is a copy without them"
                    " (`veen hub clone` without --with-keys)"
                )
            write_mark(fs, mark)
        return
    own = {layout.LOCK, layout.REPLICA, *layout.DIRECTORIES}
    if read_mark(fs) is not None:  # a beginning that was cut off
        own |= {layout.KEY_MAP, layout.ROOT, layout.IDENTITY_SIG, layout.IDENTITY}
    names = [name for name in fs.list("") if target_of(name) not in own]
    if names:
        raise StorageError(f"the directory is not empty: it contains {names[0]}")
    write_mark(fs, mark)
    for directory in layout.DIRECTORIES:
        fs.make_dir(directory)
    save_identity(fs, identity, sig, root_pk)


def save_identity(fs: Fs, identity: HubIdentity, sig: bytes, root_pk: bytes | None) -> None:
    """Write the primary's identity; if interrupted, the next run writes it again."""
    fs.replace(layout.KEY_MAP, canonical_json(identity.key_map()))
    if root_pk is not None:
        fs.replace(layout.ROOT, f"{root_pk.hex()}\n".encode())
    fs.replace(layout.IDENTITY_SIG, sig)
    fs.replace(layout.IDENTITY, identity.to_bytes())


def end_replica(fs: Fs) -> None:
    """Remove the mark: from now on the directory is a hub's own."""
    for path in seal_paths(fs):
        fs.remove(path)
    fs.remove(layout.REPLICA)
    fs.sync_dir("")


def save_seals(fs: Fs, checkpoints: Mapping[tuple[bytes, int], Checkpoint]) -> list[str]:
    """Save checkpoints of chunks that will be sealed, durable before the entries are: recovery seals them again."""
    fs.make_dir(layout.REPLICA_DIR)
    paths = []
    for (label, upto_seq), checkpoint in checkpoints.items():
        paths.append(layout.replica_seal(label, upto_seq))
        fs.replace(paths[-1], checkpoint.to_bytes())
    return paths


def seal_paths(fs: Fs) -> list[str]:
    return [f"{layout.REPLICA_DIR}/{name}" for name in fs.list(layout.REPLICA_DIR)]


def remove_seals(fs: Fs, paths: list[str]) -> None:
    """Remove the checkpoints of chunks that are sealed and durable."""
    for path in paths:
        fs.remove(path)
