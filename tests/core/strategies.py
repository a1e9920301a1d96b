"""Hypothesis strategies for every wire object, and ways to damage an encoding.

Instances are legal on the wire but not signed: signatures are random bytes, since no reader judges them.
"""

from collections.abc import Callable, Iterator
from hashlib import shake_128
from typing import Any

import cbor2
from hypothesis import strategies as st
from tests.core import strict_cbor

from veen.core.objects import control, envelopes, policies
from veen.core.objects.captoken import Allow, CapToken, Rate
from veen.core.objects.card import Prekey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import PrincipalNext, SpeaksBinding, SpeaksEnd
from veen.core.sealing.ciphertext import Attached, Attachment
from veen.core.tree.proof import ConsistencyProof, MmrProof, PathStep, RangeProof
from veen.core.wire import Wire

# --- values -------------------------------------------------------------------------------------------------

# Where an encoding changes its width, and where a signed 64-bit integer ends.
EDGES = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def bstr(size: int) -> st.SearchStrategy[bytes]:
    """Byte strings of one size, from little entropy: the bytes themselves rarely matter."""
    return st.integers(0, 2**16 - 1).map(lambda seed: shake_128(seed.to_bytes(2, "big")).digest(size))


BSTR32 = bstr(32)
BSTR64 = bstr(64)
BLOB = st.binary(max_size=40)
UINT = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
INT = st.sampled_from((-(2**64), -(2**63), -257, -256, -25, -24, -1)) | UINT
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def tuples(strategy: st.SearchStrategy[Any], max_size: int, min_size: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=min_size, max_size=max_size).map(tuple)


# A free-form map as it stands in `detail` (D-03, D-57): text keys, no byte strings, no null.
FREE = st.dictionaries(
    TEXT,
    st.recursive(
        INT | TEXT | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)

# Everything that `cbor.decode` accepts.
ITEMS = st.recursive(
    INT | BLOB | TEXT | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(INT | TEXT | BLOB, inner, max_size=4),
    max_leaves=8,
)

# --- wire objects -------------------------------------------------------------------------------------------

MSG = st.builds(
    Msg,
    profile_id=BSTR32,
    label=BSTR32,
    client_id=BSTR32,
    client_seq=UINT,
    prev_ack=UINT,
    auth_ref=maybe(BSTR32),
    ct_hash=BSTR32,
    ciphertext=BLOB | st.sampled_from((255, 256, 65535, 65536)).map(bytes),
    sig=BSTR64,
)
RECEIPT = st.builds(
    Receipt, label=BSTR32, stream_seq=UINT, leaf_hash=BSTR32, mmr_root=BSTR32, hub_ts=UINT, hub_sig=BSTR64
)
CHECKPOINT = st.builds(
    Checkpoint,
    label_prev=BSTR32,
    label_curr=BSTR32,
    upto_seq=UINT,
    mmr_root=BSTR32,
    epoch=UINT,
    hub_sig=BSTR64,
    witness_sigs=maybe(tuples(BSTR64, 16, min_size=1)),
)
PAYLOAD_HDR = st.builds(
    PayloadHdr,
    schema=BSTR32,
    parent_id=maybe(BSTR32),
    att_root=maybe(BSTR32),
    cap_ref=maybe(BSTR32),
    expires_at=maybe(UINT),
)
PROFILE = st.builds(Profile, epoch_sec=UINT, pad_block=UINT)
PATH_STEP = st.builds(PathStep, dir=UINT, sib=BSTR32)
MMR_PROOF = st.builds(MmrProof, leaf_hash=BSTR32, path=tuples(PATH_STEP, 4), peaks_after=tuples(BSTR32, 4))
CONSISTENCY_PROOF = st.builds(
    ConsistencyProof, from_size=UINT, to_size=UINT, peaks=tuples(BSTR32, 4), added=tuples(BSTR32, 4)
)
RANGE_PROOF = st.builds(
    RangeProof, first_seq=UINT, last_seq=UINT, tree_size=UINT, before=tuples(BSTR32, 4), after=tuples(BSTR32, 4)
)
RATE = st.builds(Rate, per_sec=UINT, burst=UINT)
STREAM_IDS = st.sets(BSTR32, min_size=1, max_size=4).map(lambda ids: tuple(sorted(ids)))
ALLOW = st.builds(Allow, stream_ids=STREAM_IDS, ttl=UINT, rate=maybe(RATE))
CAP_TOKEN = st.builds(
    CapToken, issuer_pk=BSTR32, subject_pk=BSTR32, allow=ALLOW, sig_chain=tuples(BSTR64, 8, min_size=1)
)
SPEAKS = st.builds(
    SpeaksBinding,
    principal_pk=BSTR32,
    client_id=BSTR32,
    stream_id=BSTR32,
    not_before=UINT,
    not_after=UINT,
    sig_client=BSTR64,
    sig_principal=BSTR64,
)
SPEAKS_END = st.builds(
    SpeaksEnd,
    principal_pk=BSTR32,
    client_id=maybe(BSTR32),
    stream_id=BSTR32,
    reason=maybe(st.text(max_size=40)),
    ended_at=maybe(UINT),
    sig_principal=BSTR64,
)
PRINCIPAL_NEXT = st.builds(PrincipalNext, old=BSTR32, new=BSTR32, stream_id=BSTR32, sig_old=BSTR64, sig_new=BSTR64)
PREKEY = st.builds(Prekey, id_sign_pk=BSTR32, prekey_pk=BSTR32, expires_at=UINT, sig=BSTR64)
STATEMENT = RECEIPT | CHECKPOINT
EQUIVOCATION = st.builds(Equivocation, hub_pks=tuples(BSTR32, 2, min_size=1), first=STATEMENT, second=STATEMENT)
ATTACHMENT = st.builds(Attachment, coid=BSTR32, size=UINT, name=maybe(TEXT), media_type=maybe(TEXT))
ATTACHED = st.builds(Attached, body=BLOB, attachments=tuples(ATTACHMENT, 3))

REVOCATION = st.builds(
    policies.Revocation, kind=st.sampled_from(policies.REVOCATION_KINDS), target=BSTR32, ts=UINT, ttl=maybe(UINT)
)
AUTHORITY = st.builds(
    policies.Authority,
    realm_id=BSTR32,
    stream_id=BSTR32,
    primary_hub=BSTR32,
    replica_hubs=tuples(BSTR32, 2),
    policy=st.sampled_from(policies.AUTHORITY_POLICIES),
    ts=UINT,
    ttl=UINT,
)
SIZE_BOUND = st.builds(
    policies.SizeBound, kind=st.sampled_from(policies.BOUND_KINDS), target=BSTR32, max_msg_bytes=UINT
)
BODIES: dict[type[Wire], st.SearchStrategy[Any]] = {
    control.CapDerive: st.builds(control.CapDerive, auth_ref=BSTR32, token_hash=BSTR32, token=BLOB, parent_ref=BSTR32),
    control.CapAuthorize: st.builds(control.CapAuthorize, auth_ref=BSTR32, token_hash=BSTR32, token=BLOB),
    control.StreamRegister: st.builds(control.StreamRegister, stream_id=BSTR32),
    control.LabelOpen: st.builds(control.LabelOpen, label=BSTR32, epoch=UINT, stream_id=maybe(BSTR32)),
    control.LimitsSet: st.builds(control.LimitsSet, limits=FREE),
    control.KeyRotate: st.builds(
        control.KeyRotate, hub_pk=BSTR32, valid_from=UINT, retired_pk=maybe(BSTR32), retired_until=maybe(UINT)
    ),
    control.RetentionDrop: st.builds(
        control.RetentionDrop, label=BSTR32, start_seq=UINT, end_seq=UINT, entry_hashes_root=BSTR32
    ),
    control.RequestDone: st.builds(control.RequestDone, request_id=BSTR32, record=UINT),
    control.OuterKey: st.builds(control.OuterKey, origin=TEXT, vkey=TEXT),
    control.HubFence: st.builds(control.HubFence, upto=UINT, root=BSTR32),
    control.HubPromote: st.builds(control.HubPromote, source=TEXT, upto=UINT, root=BSTR32, complete=st.booleans()),
    control.AnchorPublish: st.builds(
        control.AnchorPublish, label=BSTR32, upto_seq=UINT, mmr_root=BSTR32, backend=TEXT, anchor_ref=BLOB
    ),
    control.PolicyRevocation: st.builds(control.PolicyRevocation, revocations=tuples(REVOCATION, 3, min_size=1)),
    control.PolicyAuthority: st.builds(control.PolicyAuthority, authorities=tuples(AUTHORITY, 3, min_size=1)),
    control.PolicyBounds: st.builds(control.PolicyBounds, bounds=tuples(SIZE_BOUND, 3, min_size=1)),
}
CONTROL_RECORD = st.builds(
    control.ControlRecord,
    seq=UINT,
    hub_ts=UINT,
    prev_hash=BSTR32,
    body=st.one_of(*BODIES.values()),
    hub_sig=BSTR64,
)

_SEQ = {"label": BSTR32, "stream_seq": UINT}
_VERSION = {"server_version": maybe(TEXT)}
STREAM_ITEM = st.builds(envelopes.StreamItem, stream_seq=UINT, msg=MSG, receipt=maybe(RECEIPT))
ENVELOPES: dict[type[Wire], st.SearchStrategy[Any]] = {
    envelopes.SubmitRequest: st.builds(envelopes.SubmitRequest, msg=MSG),
    envelopes.SubmitResponse: st.builds(envelopes.SubmitResponse, receipt=RECEIPT, **_VERSION),
    envelopes.StreamRequest: st.builds(
        envelopes.StreamRequest,
        label=BSTR32,
        from_seq=UINT,
        to_seq=maybe(UINT),
        max_items=maybe(UINT),
        cursor=maybe(UINT),
        with_receipts=maybe(st.booleans()),
        with_mmr_proof=maybe(st.booleans()),
    ),
    envelopes.StreamResponse: st.builds(
        envelopes.StreamResponse,
        label=BSTR32,
        from_seq=UINT,
        to_seq=maybe(UINT),
        items=tuples(STREAM_ITEM, 2),
        next_cursor=maybe(UINT),
        mmr_proof=maybe(MMR_PROOF),
        **_VERSION,
    ),
    envelopes.ReceiptRequest: st.builds(envelopes.ReceiptRequest, **_SEQ),
    envelopes.ReceiptResponse: st.builds(envelopes.ReceiptResponse, receipt=RECEIPT, **_VERSION),
    envelopes.ProofRequest: st.builds(envelopes.ProofRequest, **_SEQ),
    envelopes.ProofResponse: st.builds(envelopes.ProofResponse, mmr_proof=MMR_PROOF, **_VERSION),
    envelopes.CheckpointRequest: st.builds(envelopes.CheckpointRequest, label=BSTR32, upto_seq=UINT),
    envelopes.CheckpointResponse: st.builds(envelopes.CheckpointResponse, checkpoint=CHECKPOINT, **_VERSION),
    envelopes.ErrorEnvelope: st.builds(
        envelopes.ErrorEnvelope,
        code=TEXT,
        message=TEXT,
        detail=maybe(FREE),
        retry_after=maybe(UINT),
        request_id=maybe(TEXT),
    ),
}

# Every class that has a wire form of its own, with a strategy for its legal instances.
VALID: dict[type[Wire], st.SearchStrategy[Any]] = {
    Msg: MSG,
    Receipt: RECEIPT,
    Checkpoint: CHECKPOINT,
    PayloadHdr: PAYLOAD_HDR,
    Profile: PROFILE,
    PathStep: PATH_STEP,
    MmrProof: MMR_PROOF,
    ConsistencyProof: CONSISTENCY_PROOF,
    RangeProof: RANGE_PROOF,
    Rate: RATE,
    Allow: ALLOW,
    CapToken: CAP_TOKEN,
    Prekey: PREKEY,
    SpeaksBinding: SPEAKS,
    SpeaksEnd: SPEAKS_END,
    PrincipalNext: PRINCIPAL_NEXT,
    Equivocation: EQUIVOCATION,
    Attachment: ATTACHMENT,
    Attached: ATTACHED,
    policies.Revocation: REVOCATION,
    policies.Authority: AUTHORITY,
    policies.SizeBound: SIZE_BOUND,
    **BODIES,
    control.ControlRecord: CONTROL_RECORD,
    envelopes.StreamItem: STREAM_ITEM,
    **ENVELOPES,
}

# --- damage -------------------------------------------------------------------------------------------------

Draw = Callable[[st.SearchStrategy[Any]], Any]


def single_bit_flips(data: bytes) -> Iterator[bytes]:
    """Every byte string that differs from `data` in one bit."""
    for index in range(len(data)):
        for bit in range(8):
            yield data[:index] + bytes((data[index] ^ 1 << bit,)) + data[index + 1 :]


@st.composite
def mutated(draw: Draw, encodings: st.SearchStrategy[bytes]) -> bytes:
    """An encoding with one or two things wrong with it (or, rarely, right again)."""
    data: bytes = draw(encodings)
    for mutate in draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2)):
        data = mutate(draw, data)
    return data


def _place(draw: Draw, data: bytes) -> int:
    return int(draw(st.integers(0, len(data))))


def _flip(draw: Draw, data: bytes) -> bytes:
    if not data:
        return data
    index = draw(st.integers(0, len(data) - 1))
    return data[:index] + bytes((data[index] ^ 1 << draw(st.integers(0, 7)),)) + data[index + 1 :]


def _insert(draw: Draw, data: bytes) -> bytes:
    place = _place(draw, data)
    return data[:place] + bytes(draw(st.binary(min_size=1, max_size=3))) + data[place:]


def _delete(draw: Draw, data: bytes) -> bytes:
    place = _place(draw, data)
    return data[:place] + data[place + draw(st.integers(1, 3)) :]


def _truncate(draw: Draw, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _extend(draw: Draw, data: bytes) -> bytes:
    return data + bytes(draw(st.binary(min_size=1, max_size=3)))


def _head(draw: Draw, data: bytes) -> strict_cbor.Head | None:
    heads = strict_cbor.heads(data)
    return draw(st.sampled_from(heads)) if heads else None


def _widen(draw: Draw, data: bytes) -> bytes:
    """Give an integer or a length more bytes than it needs: the value stays, the encoding is not minimal."""
    head = _head(draw, data)
    width = draw(st.sampled_from((1, 2, 4, 8)))
    if head is None or head.argument >> 8 * width:
        return data
    initial = head.major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[width]
    return data[: head.start] + bytes((initial,)) + head.argument.to_bytes(width, "big") + data[head.end :]


def _retype(draw: Draw, data: bytes) -> bytes:
    """Change the major type of an item: text for bytes, a map for an array, a float for an integer."""
    head = _head(draw, data)
    if head is None:
        return data
    return data[: head.start] + bytes((draw(st.integers(0, 7)) << 5 | head.info,)) + data[head.start + 1 :]


def _tag(draw: Draw, data: bytes) -> bytes:
    head = _head(draw, data)
    if head is None:
        return data
    tag: bytes = draw(
        st.sampled_from((b"\xc0", b"\xc1", b"\xc2", b"\xd8\x18", b"\xd8\x1c", b"\xd8\x1d", b"\xd9\xd9\xf7"))
    )
    return data[: head.start] + tag + data[head.start :]


def _indefinite(draw: Draw, data: bytes) -> bytes:
    head = _head(draw, data)
    if head is None:
        return data
    return data[: head.start] + bytes((head.major << 5 | 31,)) + data[head.end :] + b"\xff"


def _reshape(draw: Draw, data: bytes) -> bytes:
    """Change the tree: swap, drop, repeat or add members, or put another value in the place of one."""
    try:
        tree = strict_cbor.decode(data)
    except strict_cbor.RefusedError:
        return data
    path = draw(st.sampled_from(list(_paths(tree))))
    return cbor2.dumps(_changed(draw, tree, path))


def _paths(tree: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every node, the root first."""
    yield ()
    members = tree.items() if type(tree) is dict else enumerate(tree) if type(tree) is list else ()
    for key, member in members:
        for rest in _paths(member):
            yield (key, *rest)


def _changed(draw: Draw, tree: Any, path: tuple[Any, ...]) -> Any:
    if path:
        copy = tree.copy()
        copy[path[0]] = _changed(draw, tree[path[0]], path[1:])
        return copy
    if type(tree) in (list, dict) and draw(st.booleans()):
        members = list(tree.items()) if type(tree) is dict else list(tree)
        if members:
            index = draw(st.integers(0, len(members) - 1))
            member = members.pop(index)
            if draw(st.booleans()):
                members.insert(draw(st.integers(0, len(members))), member)  # elsewhere, perhaps
        elif type(tree) is dict:
            members.append((draw(INT | TEXT), 0))
        return dict(members) if type(tree) is dict else members
    if type(tree) is bytes and draw(st.booleans()):
        return tree[:-1] if draw(st.booleans()) else tree + b"\x00"
    return draw(st.sampled_from(SUBSTITUTES))


TAGS = (b"\xc0", b"\xc1", b"\xc2", b"\xd8\x18", b"\xd8\x1c", b"\xd8\x1d", b"\xd9\xd9\xf7")
SUBSTITUTES: tuple[Any, ...] = (None, True, 0, 1, 2, -1, 2**64 - 1, b"", bytes(32), bytes(64), "", [], {}, [0], {1: 0})

MUTATIONS: tuple[Callable[[Draw, bytes], bytes], ...] = (
    _flip,
    _insert,
    _delete,
    _truncate,
    _extend,
    _widen,
    _retype,
    _tag,
    _indefinite,
    _reshape,
    _reshape,
)
