"""What one request costs the thread that orders messages: the most expensive requests per byte.

    python -m benchmarks.requests

A hub with 1,000 labels, a compressed chunk of 64 MiB, an erased chunk and a thousand anchors answers each kind of
request, one at a time and without HTTP. Counted is CPU time: of the ordering thread for the whole request and in its
longest turn (for so long it lets nobody else go on), and of all other threads together.
"""

import asyncio
import tempfile
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks import report
from benchmarks.labels import commit

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import AnchorPublish
from veen.core.objects.envelopes import CheckpointRequest, ProofRequest, ReceiptRequest, StreamRequest, SubmitRequest
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.tooling import (
    CheckpointRangeRequest,
    ConsistencyRequest,
    InspectRequest,
    LabelRequest,
    ProofAtRequest,
    VersionRequest,
)
from veen.core.wire import Wire
from veen.hub.api.reply import Form, Reply
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub
from veen.storage.maintenance.retention import Erasure, prepare
from veen.storage.maintenance.scrub import compress_chunk

KEY: Final = SigningKey(H(b"requests"))
ISSUER: Final = SigningKey(H(b"issuer"))
BIG, ERASED, SMALL = H(b"big"), H(b"erased"), H(b"small")
CHUNK: Final = 1_024
SIZE: Final = 3_000
LABELS: Final = 1_000
REPEATS: Final = 7
HEAD_BYTES: Final = 60  # of the shortest request head, besides its path


@dataclass(frozen=True)
class Request:
    """One kind of request; `make` gives a body that no answer in memory fits."""

    name: str
    operation: str
    make: Callable[[int], Wire | bytes]
    form: Form = "cbor"
    query: tuple[tuple[str, str], ...] = ()


def message(label: bytes, seq: int, size: int = 200) -> Msg:
    ciphertext = bytes(32) + (20).to_bytes(4, "big") + size.to_bytes(4, "big") + b"h" * 20 + b"b" * size
    return Msg.compose(
        KEY,
        profile_id=PRESETS["bulk"].profile_id(),
        label=label,
        client_seq=seq,
        prev_ack=0,
        auth_ref=None,
        ciphertext=ciphertext,
    )


async def fill(hub: Hub) -> None:
    async def submit(messages: list[Msg]) -> None:
        for message in messages:
            await hub.sequencer.submit(message.to_bytes())

    await submit([message(BIG, seq, 63_000) for seq in range(1, CHUNK + 2)])
    await submit([message(ERASED, seq) for seq in range(1, CHUNK + 2)])
    await submit([message(SMALL, seq) for seq in range(1, 3 * CHUNK)])
    await submit([message(H(b"label %d" % number), 1) for number in range(LABELS)])
    hub.sequencer.retire_idle()
    await hub.sequencer.drain()
    await hub.sequencer._retired.wait()
    store = hub.sequencer.store
    for label in (BIG, ERASED):
        files = store.files(label)
        chunk = store.chunk_at(files, 1) if files else None
        assert chunk is not None
        if label == BIG:
            compress_chunk(hub.fs, label, chunk)
        else:
            erasure = Erasure(label, chunk, "payloads")
            prepare(hub.fs, erasure)
            drop = erasure.record(store.drop_level(label, chunk.start_seq))
            assert drop is not None
            await hub.sequencer.control(lambda _, drop=drop: drop)  # type: ignore[misc]
    files = store.files(SMALL)
    assert files is not None
    for upto in range(1, 1_001):
        body = AnchorPublish(label=SMALL, upto_seq=upto, mmr_root=bytes(32), backend="other", anchor_ref=b"ref")
        await hub.sequencer.control(lambda _, body=body: body)  # type: ignore[misc]


def requests() -> list[Request]:
    streams = [H(b"stream %d" % number) for number in range(MAX_CAP_STREAMS)]

    def token(number: int) -> CapToken:
        token = CapToken.issue(ISSUER, H(b"subject %d" % number), streams, ttl=1000)
        for _ in range(MAX_CAP_CHAIN - 1):
            token = token.renew(ISSUER)
        return token

    def page(label: bytes) -> Callable[[int], Wire]:
        return lambda number: StreamRequest(label=label, from_seq=1 + number, with_receipts=True, with_mmr_proof=True)

    def receipt(label: bytes, number: int) -> Wire:
        return ReceiptRequest(label=label, stream_seq=9 + number)

    def batch(number: int) -> bytes:
        label = H(b"batch %d" % number)
        return b"".join(message(label, seq).to_bytes() for seq in range(1, 1001))

    json_page = b'{"ver":1,"label":"%b","from_seq":%d,"with_receipts":true}'
    label, proofs = ("label", SMALL.hex()), ("with_proof", "1")
    return [
        Request("a receipt in a compressed chunk of 64 MiB", "receipt", lambda n: receipt(BIG, n)),
        Request("a receipt whose payload was erased", "receipt", lambda n: receipt(ERASED, n)),
        Request("a receipt", "receipt", lambda n: receipt(SMALL, n)),
        Request(
            "a checkpoint in a compressed chunk", "checkpoint", lambda n: CheckpointRequest(label=BIG, upto_seq=n + 9)
        ),
        Request("a proof", "proof", lambda n: ProofRequest(label=SMALL, stream_seq=9 + n)),
        Request(
            "a proof at a size", "proof_at", lambda n: ProofAtRequest(label=SMALL, stream_seq=9 + n, tree_size=SIZE)
        ),
        Request(
            "a consistency proof",
            "consistency",
            lambda n: ConsistencyRequest(label=SMALL, from_size=9 + n, to_size=SIZE),
        ),
        Request("the latest checkpoint", "checkpoint_latest", lambda n: LabelRequest(label=SMALL)),
        Request(
            "checkpoint_range over 1,000 labels",
            "checkpoint_range",
            lambda n: CheckpointRangeRequest(epoch_min=0, epoch_max=0),
        ),
        Request(
            "checkpoint_range in JSON", "checkpoint_range", lambda n: b'{"ver":1,"epoch_min":0,"epoch_max":0}', "json"
        ),
        Request("inspect, 1,000 labels", "inspect", lambda n: InspectRequest()),
        Request("inspect in JSON", "inspect", lambda n: b'{"ver":1}', "json"),
        Request("a page of small entries", "stream", page(SMALL)),
        Request("a page of a compressed chunk, 8 MiB", "stream", page(BIG)),
        Request("that page in JSON", "stream", lambda n: json_page % (BIG.hex().encode(), n + 1), "json"),
        Request("legacy stream with proofs", "legacy_stream", lambda n: b"", query=(label, proofs)),
        Request("100 of 1,000 anchors", "anchor_list", lambda n: b"", "json", query=(label,)),
        Request("metrics", "metrics", lambda n: b"", "json"),
        Request("the OpenAPI document", "openapi", lambda n: b"", "json"),
        Request("status", "status", lambda n: VersionRequest()),
        Request("identity", "identity", lambda n: VersionRequest()),
        Request("authorize: 1,024 streams, 8 links", "authorize", token),
        Request("submit, 1 MiB", "submit", lambda n: SubmitRequest(msg=message(H(b"one"), n + 1, 1_000_000))),
        Request("submit, small", "submit", lambda n: SubmitRequest(msg=message(H(b"two"), n + 1))),
        Request("a batch of 1,000 small messages, verified inline", "submit_batch", batch),
    ]


class Turns:
    """CPU time of the callbacks of an event loop."""

    def __init__(self) -> None:
        self.total = self.longest = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        run = events.Handle._run

        def timed(handle: events.Handle) -> None:
            began = time.thread_time()
            run(handle)
            spent = time.thread_time() - began
            self.total += spent
            self.longest = max(self.longest, spent)

        events.Handle._run = timed  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            events.Handle._run = run  # type: ignore[method-assign]


@dataclass(frozen=True)
class Cost:
    name: str
    request_bytes: int
    answer_bytes: int
    ordering_ms: float
    longest_ms: float
    others_ms: float

    @property
    def per_byte(self) -> float:
        return self.ordering_ms * 1e3 / self.request_bytes


async def measure(hub: Hub, request: Request) -> Cost:
    ordering, longest, others = [], [], []
    size = answer = 0
    for number in range(REPEATS):
        hub.sequencer.store.reader._unpacked.clear()
        body = request.make(number)
        data = body if isinstance(body, bytes) else body.to_bytes()
        turns = Turns()
        process, thread = time.process_time(), time.thread_time()
        with turns.counted():
            call = hub.api.call(request.operation, data, form=request.form, query=dict(request.query))
            reply: Reply = await asyncio.create_task(call)
        others.append((time.process_time() - process) - (time.thread_time() - thread))
        assert reply.status < 300, (request.name, reply.status, reply.body[:200])
        ordering.append(turns.total)
        longest.append(turns.longest)
        query = "&".join(f"{name}={value}" for name, value in request.query)
        size, answer = HEAD_BYTES + len(request.operation) + len(query) + len(data), len(reply.body)
    return Cost(request.name, size, answer, median(ordering) * 1e3, median(longest) * 1e3, median(others) * 1e3)


async def measure_all() -> list[Cost]:
    with tempfile.TemporaryDirectory(prefix="veen-requests-") as root:
        flags = {
            "data_dir": f"{root}/hub",
            "listen.port": "0",
            "engine.workers": "0",
            "log.level": "error",
            "admission.capability_gating": "false",
            "admission.stream_scope": "open",
            "admission.trusted_issuers": ISSUER.public.hex(),
            "scrub.bytes_per_second": "0",
        }
        async with Hub.serve(load(None, {}, flags)) as hub:
            await fill(hub)
            return [await measure(hub, request) for request in requests()]


def table(costs: list[Cost]) -> str:
    lines = [
        "## The most expensive requests",
        "",
        report.machine(),
        "",
        f"`python -m benchmarks.requests` at commit {commit()}. CPU time of one request, median of {REPEATS}: what it "
        "takes of the thread that orders messages, the longest turn of that thread (for so long others wait), and what "
        "other threads do for it (one thread, at a lower priority, unpacks and makes large answers). By the time "
        "of the ordering thread for each byte of the request.",
        "",
        "| request | bytes | answer, bytes | ordering, ms | longest turn, ms | other threads, ms | µs per byte |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for cost in sorted(costs, key=lambda cost: -cost.per_byte)[:10]:
        lines.append(_row(cost))
    lines += ["", "The longest turns of all:", "", *lines[6:8]]
    lines += [_row(cost) for cost in sorted(costs, key=lambda cost: -cost.longest_ms)[:5]]
    return "\n".join(lines)


def _row(cost: Cost) -> str:
    return (
        f"| {cost.name} | {cost.request_bytes:,} | {cost.answer_bytes:,} | {cost.ordering_ms:.2f} "
        f"| {cost.longest_ms:.2f} | {cost.others_ms:.1f} | {cost.per_byte:.2f} |"
    )


def main() -> None:
    costs = asyncio.run(measure_all())
    for cost in sorted(costs, key=lambda cost: -cost.longest_ms):
        print(_row(cost))
    report.write_section("requests", table(costs))


if __name__ == "__main__":
    main()
