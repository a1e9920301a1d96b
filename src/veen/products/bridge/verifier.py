"""The verifier as a separate process: no key, no network, no file except the two it is given (NCSC, PRODUCTS 3.1).

A bundle comes from a zone that may be hostile, so its parser must not be able to do harm: the child gets an empty
environment, the bundle open for reading, a file for the verified events, and a request on standard input. Once its
modules are loaded it gives up the right to open descriptors: no file, no socket. Its answer is one JSON object.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from veen.core import cbor
from veen.core.errors import FormatError
from veen.overlays.airgap.bodies import ImportedEvent, WithheldEvent
from veen.products.bridge.bundle import MAX_ITEM_BYTES, BundleReader, Header, Rejected, Trailer, VerifierFailed
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verify import BundleVerdict, ChainHead, Chains, Crossing, OutOfOrder, verify

_SECONDS: Final = 24 * 3600.0  # a verifier that hangs is ended; a bundle of a gigabyte takes minutes
_MAX_ANSWER: Final = 16 << 20
_MEMORY_BYTES: Final = 2 << 30
_KINDS: Final = (ImportedEvent, WithheldEvent)
_ATTACHMENT: Final = len(_KINDS)  # bytes, not an event
_PROGRAM: Final = "import sys; sys.path[:] = sys.argv[3:]; from veen.products.bridge.verifier import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRefusal:
    """The reason for refusing a bundle; `is_early` if it only has to wait for others."""

    code: str
    detail: str
    position: int | None
    is_early: bool
    bundle_id: bytes | None  # as the bundle claims, if it can be read


def verify_apart(bundle: Path, spool: Path, trust: TrustList, chains: Chains) -> BundleVerdict | BundleRefusal:
    """Verify in a child process; after a good verdict `spool` has the verified events (see `crossings`)."""
    request = {"trust": trust.to_json(), "chains": [_chain_to_json(key, head) for key, head in chains.items()]}
    spool.unlink(missing_ok=True)  # the verifier of an importer that was killed may still write to that file
    with bundle.open("rb") as source, spool.open("w+b") as target:
        try:
            child = subprocess.run(  # noqa: S603 - our own interpreter and program
                [sys.executable, "-I", "-c", _PROGRAM, str(source.fileno()), str(target.fileno()), *sys.path],
                input=json.dumps(request).encode(),
                capture_output=True,
                env={},
                cwd="/",
                pass_fds=(source.fileno(), target.fileno()),
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise VerifierFailed(f"the verifier could not run: {exc}") from exc
        target.flush()
        os.fsync(target.fileno())
    if child.returncode != 0 or len(child.stdout) > _MAX_ANSWER:
        words = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise VerifierFailed(f"the verifier ended with status {child.returncode}: {words[:200]}")
    return _read_answer(child.stdout)


def verify_here(bundle: Path, spool: Path, trust: TrustList, chains: Chains) -> BundleVerdict | BundleRefusal:
    """Verify in this process: for programs that hold no keys themselves."""
    request = {"trust": trust.to_json(), "chains": [_chain_to_json(key, head) for key, head in chains.items()]}
    with bundle.open("rb") as source, spool.open("w+b") as target:
        return _read_answer(json.dumps(_answer(source, target, request)).encode())


def crossings(spool: Path) -> Iterator[Crossing]:
    """Return an iterator over the events that a verifier wrote."""
    return (item for item in read_items(spool) if not isinstance(item, bytes))


def read_items(spool: Path) -> Iterator[Crossing | bytes]:
    """Yield the events, each followed by the ciphertexts of its attachments."""
    with spool.open("rb") as file:
        while head := file.read(5):
            kind, size = head[0], int.from_bytes(head[1:], "big")
            if len(head) < 5 or kind > _ATTACHMENT or size > MAX_ITEM_BYTES:
                raise VerifierFailed("the verifier wrote down something else than events")
            data = file.read(size)
            yield data if kind == _ATTACHMENT else _KINDS[kind].from_bytes(data)


def _read_answer(data: bytes) -> BundleVerdict | BundleRefusal:
    try:
        answer: dict[str, Any] = json.loads(data)
        if answer["ok"]:
            return BundleVerdict(
                header=Header.from_bytes(bytes.fromhex(answer["header"])),
                trailer=Trailer.from_bytes(bytes.fromhex(answer["trailer"])),
                target=str(answer["target"]),
                root=bytes.fromhex(answer["root"]),
                warnings=tuple(map(str, answer["warnings"])),
            )
        return BundleRefusal(
            code=str(answer["code"]),
            detail=str(answer["detail"]),
            position=answer["position"],
            is_early=bool(answer["early"]),
            bundle_id=bytes.fromhex(answer["bundle_id"]) if answer["bundle_id"] else None,
        )
    except (ValueError, KeyError, TypeError, FormatError) as exc:
        raise VerifierFailed(f"the verifier answered with something else than a verdict: {exc}") from exc


# --- inside the child ----------------------------------------------------------------------------------------------


def close_doors() -> None:
    """Forbid this process to open files and sockets, and limit its memory.

    Programs that it might execute inherit the limit. Only a holder of CAP_SYS_RESOURCE could raise it: see
    docs/bridge.md.
    """
    import resource

    from veen.core.catalogue import catalogue

    catalogue()  # the words of errors are read from a file
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Run `python -c … BUNDLE_FD SPOOL_FD`, with the request on standard input."""
    source, target = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb")
    request = json.loads(sys.stdin.buffer.read())
    close_doors()
    with source, target:
        answer = _answer(source, target, request)
    sys.stdout.write(json.dumps(answer))


def _answer(source: IO[bytes], target: IO[bytes], request: Any) -> dict[str, Any]:
    chains = dict(_chain_from_json(chain) for chain in request["chains"])

    def emit(crossing: Crossing) -> None:
        write(_KINDS.index(type(crossing)), cbor.encode(crossing.to_tree()))

    def write(kind: int, data: bytes) -> None:
        target.write(bytes((kind,)) + len(data).to_bytes(4, "big") + data)

    try:
        trust = TrustList.from_json(request["trust"])
        verdict = verify(source, trust, chains, emit, lambda ciphertext: write(_ATTACHMENT, ciphertext))
    except Rejected as exc:
        claimed = _read_claimed_id(source)
        return {
            "ok": False,
            "code": exc.code,
            "detail": exc.detail,
            "position": exc.position,
            "early": isinstance(exc, OutOfOrder) and exc.is_early,
            "bundle_id": claimed.hex() if claimed else None,
        }
    return {
        "ok": True,
        "header": verdict.header.to_bytes().hex(),
        "trailer": verdict.trailer.to_bytes().hex(),
        "target": verdict.target,
        "root": verdict.root.hex(),
        "warnings": verdict.warnings,
    }


def _read_claimed_id(source: IO[bytes]) -> bytes | None:
    try:
        reader = BundleReader(source)
        for _ in reader.events():
            pass
    except Rejected:
        return None
    return reader.trailer.bundle_id if reader.trailer else None


def _chain_to_json(key: tuple[bytes, bytes], head: ChainHead) -> list[Any]:
    bridge_id, label = key
    return [bridge_id.hex(), label.hex(), head.bundle_seq, head.bundle_id.hex(), head.seq, head.root.hex()]


def _chain_from_json(value: list[Any]) -> tuple[tuple[bytes, bytes], ChainHead]:
    bridge_id, label, bundle_seq, bundle_id, seq, root = value
    head = ChainHead(bundle_seq=bundle_seq, bundle_id=bytes.fromhex(bundle_id), seq=seq, root=bytes.fromhex(root))
    return (bytes.fromhex(bridge_id), bytes.fromhex(label)), head
