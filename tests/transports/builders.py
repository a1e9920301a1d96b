"""Hubs that are reached by every transport, and the script of calls that all of them must answer alike."""

import contextlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tests.client.hubs import Clock
from tests.hub import builders as w
from tests.hub.test_http import certificate
from tests.transports.natsserver import NatsServer, nats_server

from veen.client.transport.opening import open_transport
from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.hashing import H
from veen.core.labels import label_of, routing_key_of
from veen.core.objects.envelopes import (
    SUBMIT_PREFIX,
    CheckpointRequest,
    ErrorEnvelope,
    ProofRequest,
    ReceiptRequest,
    StreamRequest,
)
from veen.core.objects.tooling import (
    AnchorRequest,
    AttachmentsRequest,
    CapStatusRequest,
    CheckpointRangeRequest,
    ClientCursorRequest,
    ConsistencyRequest,
    DeriveRequest,
    FeedRequest,
    InspectRequest,
    LabelRequest,
    PolicyRequest,
    ProofAtRequest,
    RotateKeyRequest,
    StreamRegisterRequest,
    TailRequest,
    VersionRequest,
)
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub

KINDS = ("http", "file", "nats", "quic")
OTHERS = tuple(kind for kind in KINDS if kind != "http")
ADMIN = "an-administrator-token"
MIB = 1 << 20


@dataclass
class World:
    """Where the parts of a test live: `tmp_path`, and the servers that all its hubs share."""

    root: Path
    nats: NatsServer | None = None
    cert: Path | None = None
    key: Path | None = None


@contextlib.asynccontextmanager
async def world_of(kind, tmp_path):
    """What a transport of this kind needs beside the hub."""
    world = World(tmp_path)
    with contextlib.ExitStack() as stack:
        if kind == "nats":
            world.nats = stack.enter_context(nats_server(tmp_path / "nats-server"))
        if kind == "quic":
            world.cert, world.key, _ = certificate(tmp_path, "localhost")
        yield world


@contextlib.asynccontextmanager
async def hub_by(kind, world, data_dir, *, clock=None, **settings):
    """A hub that is reached by HTTP and by `kind`; `url_of` says where."""
    flags = {
        "data_dir": str(data_dir),
        "listen.port": "0",
        "engine.workers": "0",
        "log.level": "error",
        "admission.capability_gating": "false",
        "admission.stream_scope": "open",
        "engine.max_clock_step": "0",
        **{key.replace("__", "."): str(value) for key, value in settings.items()},
    }
    if kind == "file":
        flags.setdefault("spool.directory", f"{data_dir}-spool")
    if kind == "nats" and world is not None:
        flags.setdefault("nats.url", world.nats.url)
    if kind == "quic" and world is not None:
        flags |= {"quic.enabled": "true", "tls.cert": str(world.cert), "tls.key": str(world.key)}
        flags.setdefault("quic.port", "0")
    options = {} if clock is None else {"clock": clock}
    async with Hub.serve(load(None, {}, flags), **options) as hub:
        yield hub


def url_of(kind, hub):
    if kind == "http":
        return hub.url.replace("https://127.0.0.1", "https://localhost")
    (url,) = (url for url in hub.transport_urls if url.partition(":")[0].partition("+")[0] == kind)
    return url.replace("quic://127.0.0.1", "quic://localhost")  # the name in the certificate


@contextlib.asynccontextmanager
async def transport_by(kind, world, hub, **options):
    if world is not None and world.cert is not None:
        options.setdefault("ca_file", world.cert)
    transport = open_transport(url_of(kind, hub), **options)
    try:
        yield transport
    finally:
        await transport.aclose()


async def twins(tmp_path):
    """Two data directories of one identity: what they are asked in the same order they answer in the same bytes."""
    seed = tmp_path / "seed"
    async with hub_by("http", None, seed, clock=Clock()):
        pass
    for name in ("a", "b"):
        shutil.copytree(seed, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def without_id(body):
    """An answer without the request ids of errors, which no two answers share; a batch may hold several."""
    try:
        items = list(cbor.sequence(body, max_items=100_000))
    except FormatError:
        return body
    return [_without_id(item) for item in items]


def _without_id(item):
    try:
        return replace(ErrorEnvelope.from_bytes(item), request_id=None).to_bytes()
    except FormatError:
        return item


def message_for(hub, *, seq=1, ack=0, size=64, key=w.ALICE):
    """A MSG of the stream `orders` at this hub."""
    label = label_of(routing_key_of(hub.identity.hub_id), w.STREAM, 0)
    ciphertext = w.CIPHERTEXT + bytes(size)
    return w.msg(key, seq=seq, ack=ack, token=None, label=label, ciphertext=ciphertext)


def script(hub, now):
    """(operation, body, headers) of every operation and of the faults that a request can have, in an order in which
    each finds what it needs. Answers of `LOOSE` differ from hub to hub."""
    label = label_of(routing_key_of(hub.identity.hub_id), w.STREAM, 0)
    first, second, third = (message_for(hub, seq=seq, ack=seq - 1).to_bytes() for seq in (1, 2, 3))
    payload = b"attachment" * 20
    coid = H(payload).hex()
    cursor = ClientCursorRequest.issue(w.ALICE, label, ts=now)
    nothing = VersionRequest().to_bytes()
    calls = [
        ("v1/submit", SUBMIT_PREFIX + first),
        ("v1/submit", SUBMIT_PREFIX + first),  # DUPLICATE, with the place
        ("v1/submit", SUBMIT_PREFIX + third),  # CLIENT_SEQ or PREV_ACK
        ("tooling/submit_batch", second + third + first),
        ("v1/submit", SUBMIT_PREFIX + first[:-1] + bytes((first[-1] ^ 1,))),  # SIG_INVALID
        ("v1/submit", b"\xff"),
        ("v1/submit", SUBMIT_PREFIX + bytes(MIB + 1)),  # SIZE_PREFILTER
        ("v1/submit", b""),  # 405
        ("v1/stream", StreamRequest(label=label, from_seq=1, with_receipts=True, with_mmr_proof=True).to_bytes()),
        ("v1/stream", StreamRequest(label=bytes(32), from_seq=1).to_bytes()),
        ("v1/stream", bytes(70_000)),  # LIMIT
        ("v1/receipt", ReceiptRequest(label=label, stream_seq=1).to_bytes()),
        ("v1/receipt", ReceiptRequest(label=label, stream_seq=99).to_bytes()),
        ("v1/proof", ProofRequest(label=label, stream_seq=2).to_bytes()),
        ("v1/checkpoint", CheckpointRequest(label=label, upto_seq=3).to_bytes()),
        ("v2/submit", first),
        ("no/such/operation", b"x"),
        ("tooling/authorize", w.FREE_TOKEN.to_bytes()),
        ("tooling/derive", DeriveRequest(token=w.FREE_TOKEN, parent_ref=w.FREE_TOKEN.auth_ref()).to_bytes()),  # refused
        ("tooling/cap_status", CapStatusRequest(auth_ref=w.FREE_TOKEN.auth_ref()).to_bytes()),
        ("tooling/streams", StreamRegisterRequest(stream_id=w.OTHER_STREAM).to_bytes()),
        ("tooling/streams", b""),
        ("tooling/policy", PolicyRequest().to_bytes()),
        ("tooling/policy", b""),
        ("tooling/anchor", AnchorRequest(label=label, upto_seq=3, backend="elsewhere", anchor_ref=b"ref").to_bytes()),
        (f"tooling/anchor?label={label.hex()}", b""),
        (f"tooling/stream?stream={w.STREAM.hex()}", b""),
        ("tooling/stream", b""),
        ("tooling/openapi.json", b""),
        ("tooling/checkpoint_latest", LabelRequest(label=label).to_bytes()),
        ("tooling/checkpoint_range", CheckpointRangeRequest(epoch_min=0, epoch_max=9).to_bytes()),
        (f"tooling/checkpoint_latest?label={label.hex()}", b""),
        ("tooling/checkpoint_range?epoch_min=0&epoch_max=9", b""),
        ("tooling/client_cursor", cursor.to_bytes()),
        ("tooling/consistency", ConsistencyRequest(label=label, from_size=1, to_size=3).to_bytes()),
        ("tooling/inspect", InspectRequest(label=label).to_bytes()),
        ("tooling/key_rotations", nothing),
        ("tooling/proof_at", ProofAtRequest(label=label, stream_seq=1, tree_size=3).to_bytes()),
        ("tooling/report_equivocation", nothing),
        ("tooling/tail", TailRequest(label=label, from_seq=2, wait_sec=1, with_receipts=True).to_bytes()),
        ("tooling/tail", TailRequest(label=label, from_seq=1, wait_sec=10**6).to_bytes()),
        ("tooling/status", nothing),
        ("tooling/status", b""),
        ("tooling/identity", nothing),
        ("tooling/identity?" + "&".join(f"a{number}=1" for number in range(20)), b""),
        (f"tooling/attachment/{coid}", payload),
        (f"tooling/attachment/{coid}", b""),
        ("tooling/attachment/00", b""),
        ("outer/checkpoint", b""),
        ("healthz", b""),
        ("readyz", b""),
        ("version", b""),
        ("tooling/version", b""),
        ("metrics", b""),
        ("tooling/attachments", AttachmentsRequest(after=2**63).to_bytes()),
        ("tooling/feed", FeedRequest(control_bytes=0, wait_sec=0).to_bytes()),
        ("tooling/feed", FeedRequest(control_bytes=10**9, wait_sec=0).to_bytes()),
        ("tooling/promotion", nothing),
        ("tooling/rotate_key", RotateKeyRequest(overlap_sec=3600).to_bytes()),
        ("tooling/fence", nothing),  # the last that changes anything: nothing is admitted from then on
        ("x" * 2_040, b""),  # the longest name that a frame can hold
    ]
    # Of rights: nobody's token, an administrator's, and a header that is no token.
    return [
        *((operation, body, {"Authorization": f"Bearer {ADMIN}"}) for operation, body in calls),
        ("tooling/streams", b"", {}),
        ("tooling/streams", b"", {"Authorization": "Bearer another-token-00000"}),
        ("tooling/streams", b"", {"Authorization": "Basic eA=="}),
        ("v1/submit", SUBMIT_PREFIX + first, {"VEEN-PoW": "00"}),
        (f"tooling/attachment/{H(b'2').hex()}", b"2", {"VEEN-Cap": "not a grant"}),
    ]


LOOSE = ("metrics", "tooling/rotate_key", "tooling/feed", "tooling/fence", "healthz")
ENDLESS = "events"  # the operation without an end, which not every transport carries
