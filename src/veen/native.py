"""The optional Rust module `veen_native` (docs/native.md): loading and checks of version and CPU.

It is loaded once, when this module is imported. Without it everything works the same, in Python and libsodium;
`VEEN_NATIVE=0` in the environment disables it.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

__all__ = [
    "LOADED",
    "VARIABLE",
    "VERSION",
    "Checked",
    "Loaded",
    "Module",
    "NativeSigner",
    "Pool",
    "ScannedChunk",
    "SealedGroup",
    "Sizes",
    "load",
]

VARIABLE: Final = "VEEN_NATIVE"
VERSION: Final = "0.5.0"  # native/Cargo.toml; another one may have other functions


class Checked(Protocol):
    """A MSG with valid structure and signature, with the fields that ordering needs."""

    @property
    def label(self) -> bytes: ...
    @property
    def client_id(self) -> bytes: ...
    @property
    def client_seq(self) -> int: ...
    @property
    def prev_ack(self) -> int: ...
    @property
    def auth_ref(self) -> bytes | None: ...
    def leaf_hash(self) -> bytes: ...


class NativeSigner(Protocol):
    """A secret key of the hub, inside the module."""


class SealedGroup(Protocol):
    """Entries and control records for one sync, in the order they were added."""

    def add_record(self, data: bytes) -> None: ...
    def parts(self) -> list[tuple[bytes, bytes | None, bytes | None]]:
        """Return bytes, entry_hash and receipt of each entry, and only bytes of a record. Wait for the workers."""
        ...


Sizes = tuple[int, int, int]  # max_msg_bytes, max_hdr_bytes, max_body_bytes


class Pool(Protocol):
    """Worker threads."""

    @property
    def wake_fd(self) -> int: ...
    def set_rules(self, profiles: Sequence[bytes], sizes: Sizes) -> None: ...
    def submit(self, raw: bytes) -> bool: ...
    def take(self) -> "list[Checked | Literal[False] | None]": ...
    def seal(
        self,
        group: SealedGroup,
        signer: NativeSigner,
        raw: bytes,
        label: bytes,
        stream_seq: int,
        leaf_hash: bytes,
        mmr_root: bytes,
        hub_ts: int,
        /,
    ) -> None: ...
    def close(self) -> None: ...


# client_id, hub_ts, client_seq and prev_ack of its first entry, client_seq and prev_ack of its last, stream_seq of all
Writer = tuple[bytes, int, int, int, int, int, list[int]]
TokenUse = tuple[bytes, bytes, int, int]  # auth_ref, client_id, hub_ts, how often


class ScannedChunk(Protocol):
    """Summary of the entries of a chunk without faults. Hashes are concatenated, numbers are as on disk."""

    @property
    def entries(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def first_ts(self) -> int: ...
    @property
    def last_ts(self) -> int: ...
    @property
    def first_length(self) -> int: ...
    @property
    def entry_hashes(self) -> bytes: ...
    @property
    def roots(self) -> bytes: ...
    @property
    def nodes(self) -> bytes: ...
    @property
    def locations(self) -> bytes: ...
    @property
    def peaks(self) -> bytes: ...
    @property
    def hash_peaks(self) -> bytes: ...
    @property
    def writers(self) -> list[Writer]: ...
    @property
    def uses(self) -> list[TokenUse]: ...


class Module(Protocol):
    """Interface of `veen_native` that VEEN uses."""

    def verify(self, public: bytes, message: bytes, signature: bytes, /) -> bool: ...
    def verify_many(self, jobs: bytes, /) -> bytes: ...
    def split(self, data: bytes, start: int, most: int, /) -> tuple[list[bytes], int]:
        """Return messages of a CBOR sequence, and the position of the first item that does not look like one."""
        ...

    def scan_chunk(
        self,
        data: bytes,
        label: bytes,
        start_seq: int,
        most: int,
        max_msg_bytes: int,
        peaks: bytes,
        hub_keys: Sequence[tuple[bytes, int, int | None]] | None,
        signatures: bool,
        threads: int,
        /,
    ) -> ScannedChunk | None:
        """Return a summary of the entries of a chunk; None if one has a fault or the module cannot decide."""
        ...

    def Signer(self, seed: bytes, /) -> NativeSigner: ...  # noqa: N802 - a class of the module
    def Group(self) -> SealedGroup: ...  # noqa: N802
    def Pool(self, workers: int, profiles: Sequence[bytes], sizes: Sizes, nice: int = 0) -> Pool: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading the module."""

    module: Module | None
    status: Literal["native", "absent", "off", "unfit"]  # unfit: it is there, and something is wrong with it
    what: str  # in words, for people
    cpu_features: tuple[str, ...] = ()  # that it was built for, beyond the least of its architecture


def load(environment: Mapping[str, str], import_module: Callable[[str], Any] = importlib.import_module) -> Loaded:
    """Load the module if it is enabled, installed, of the right version, and built for this CPU."""
    if environment.get(VARIABLE) == "0":
        return Loaded(None, "off", f"Python; {VARIABLE}=0 turns the native module off")
    try:
        module = import_module("veen_native")
    except ModuleNotFoundError as exc:
        if exc.name == "veen_native":
            return Loaded(None, "absent", "Python; the native module is not installed (make native)")
        return _unfit(f"it cannot be imported: {exc}")
    except Exception as exc:  # whatever a library of another platform does, it must not stop a program
        return _unfit(f"it cannot be imported: {type(exc).__name__}: {exc}")
    if (version := getattr(module, "__version__", None)) != VERSION:
        return _unfit(f"its version is {version}, expected {VERSION}")
    features = tuple(name for name, _ in module.cpu_features())
    if lacking := [name for name, has in module.cpu_features() if not has]:
        return _unfit(f"it was built for a CPU with {', '.join(lacking)}, which this one lacks")
    built = (
        f"built for this kind of CPU: {', '.join(features)}" if features else "built for any CPU of its architecture"
    )
    return Loaded(module, "native", f"native {VERSION}, {built}", features)


def _unfit(why: str) -> Loaded:
    return Loaded(None, "unfit", f"Python; the native module is not used: {why} (make native builds it anew)")


LOADED: Final = load(os.environ)
