"""Admission of a message to the log (spec §8.1, §8.2, decisions §7).

Three steps, in this order; the first check that fails decides the answer (I13):

    check_structure   bytes in, a well-formed Msg out. No state, no clock.
    (signature)       by the verifiers, over `Msg.signing_digest`
    decide            state, policy and hub_ts in, a decision out. Pure: replaying the log through it accepts every
                      entry again (D-60).

A refusal of a message that is in the log names its place (`with_location`), whatever the reason (D-161): a client
that repeats a message after a lost answer learns from any refusal that the first attempt was accepted.

Nothing here reads a payload, and nothing changes state: `State.admit` applies the decision.

Ids of refused requests, shared by the answer and the line of the log.

Stream and epoch of a label (D-23).

A label hides its stream from everyone without the routing key. The hub has that key: it derives the labels of the
candidate streams for the epochs around the current one, and compares. Candidates are the registered and configured
streams, and those of the message's own token. Labels with entries are known forever, by their `label.open` record,
and are not looked up here.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from typing import Any, Final

from veen.core import cbor
from veen.core.errors import (
    CapabilityError,
    FieldSizeError,
    FormatError,
    LimitError,
    PaddingError,
    Refusal,
    VersionError,
)
from veen.core.labels import epoch_at, epoch_window, label_of
from veen.core.limits import Limits
from veen.core.lru import Lru
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import CapAuthorize, LabelOpen
from veen.core.objects.msg import Msg
from veen.core.objects.policies import FOREVER, SINGLE_PRIMARY
from veen.core.sealing.ciphertext import Parts
from veen.core.wire import Wire
from veen.hub.admission.policy import Auth1, Kex1, Policy
from veen.native import Checked
from veen.storage.state import Cap, Label, LogState

_RUN: Final = secrets.token_hex(4)  # of this process, so that ids of two runs of a hub differ
_NUMBERS: Final = count(1)


def next_request_id() -> str:
    """Return an id that no other request of this process has."""
    return f"{_RUN}-{next(_NUMBERS):x}"


_MAX_WINDOW = 16
_TOKEN_LABELS: Final = 65_536  # labels of recently used tokens; a token may name 1,024 streams

_Places = dict[bytes, tuple[bytes, int]]  # label -> (stream_id, epoch)


class Resolver:
    """Indexes from label to (stream_id, epoch), rebuilt when the epoch or the set of streams changes."""

    def __init__(self, routing_key: bytes, epoch_sec: int, max_epoch_skew_sec: int) -> None:
        self._routing_key, self._epoch_sec = routing_key, epoch_sec
        self.window = min(epoch_window(epoch_sec, max_epoch_skew_sec), _MAX_WINDOW)
        self._streams: set[bytes] = set()
        self._epochs: range = range(0)
        self._known: _Places = {}
        self._tokens: Lru[bytes, _Places] = Lru(_TOKEN_LABELS, weigh=len)  # by auth_ref

    def add(self, stream_ids: Iterable[bytes]) -> None:
        """Add streams that a registration or the configuration names."""
        for stream_id in stream_ids:
            if stream_id not in self._streams:
                self._streams.add(stream_id)
                self._known |= self._derive(stream_id)

    def current_epoch(self, hub_ts: int) -> int:
        return epoch_at(hub_ts, self._epoch_sec)

    def resolve(
        self, label: bytes, hub_ts: int, auth_ref: bytes | None = None, token: CapToken | None = None
    ) -> tuple[bytes, int] | None:
        """Return the stream and epoch of a label around the current epoch, or None. `token` is the message's own."""
        epochs = self._around(self.current_epoch(hub_ts))
        if epochs != self._epochs:
            self._epochs, self._known = epochs, {}
            self._tokens.clear()
            for stream_id in self._streams:
                self._known |= self._derive(stream_id)
        place = self._known.get(label)
        if place is not None or auth_ref is None or token is None:
            return place
        return self._of_token(auth_ref, token).get(label)

    def _of_token(self, auth_ref: bytes, token: CapToken) -> _Places:
        """Return the labels of a token's streams, derived once and not for each message that names none of them."""
        places = self._tokens.get(auth_ref)
        if places is None:
            places = {}
            for stream_id in token.allow.stream_ids:
                places |= self._derive(stream_id)
            self._tokens.put(auth_ref, places)
        return places

    def _around(self, epoch: int) -> range:
        """Return the accepted epochs and one more on each side, so that a near miss is refused as EPOCH (D-24)."""
        if not self._epoch_sec:
            return range(1)
        return range(max(0, epoch - self.window - 1), epoch + self.window + 2)

    def _derive(self, stream_id: bytes) -> _Places:
        return {label_of(self._routing_key, stream_id, epoch): (stream_id, epoch) for epoch in self._epochs}


# (label, row of the client, client_seq) -> (stream_seq, leaf_hash) of an accepted message, if it is in the log
FindEntry = Callable[[Label, int, int], tuple[int, bytes] | None]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refusal of a message, with its reason. `detail` is machine-readable and has stable keys (spec §10.6)."""

    refusal: Refusal
    detail: Mapping[str, Any] = field(default_factory=dict)
    retry_after: int | None = None
    _request_id: str | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def request_id(self) -> str:
        """Id of the refused request in the answer and in the log, drawn on first use.

        It is no part of the decision: two refusals for the same reason are equal.
        """
        if self._request_id is None:
            object.__setattr__(self, "_request_id", next_request_id())
        assert self._request_id is not None  # noqa: S101 - set above
        return self._request_id


@dataclass(frozen=True, slots=True)
class Accept:
    """Acceptance of a message. `records` must precede the entry in the control journal.

    The first entry of a label opens it, and the first use of a preloaded token authorises it.
    """

    records: tuple[Wire, ...] = ()


_ACCEPT: Final = Accept()
_CIPHERTEXT: Final = 8  # its index in a MSG


def check_structure(raw: bytes, profiles: Collection[bytes], limits: Limits) -> Msg | Refuse:
    """Check everything about a MSG that needs no state; return the message or the refusal."""
    try:
        msg = Msg.from_bytes(raw)
    except VersionError as exc:
        # The structure is right, so the sizes can be checked; they rank above the version (decisions §7).
        sizes = _check_ciphertext(cbor.decode(raw)[_CIPHERTEXT], limits)
        if sizes is not None and sizes.refusal is Refusal.FIELD_SIZE:
            return sizes
        return Refuse(Refusal.VERSION, {"field": "ver", "expected": 1, "actual": exc.actual})
    except FieldSizeError as exc:
        return Refuse(Refusal.FIELD_SIZE, {"field": exc.where, "expected": exc.expected, "actual": exc.actual})
    except FormatError:
        return Refuse(Refusal.CBOR_INVALID)
    fault = _check_ciphertext(msg.ciphertext, limits)
    if fault is not None and fault.refusal is Refusal.FIELD_SIZE:
        return fault
    if msg.profile_id not in profiles:
        return Refuse(Refusal.PROFILE, {"field": "profile_id"})
    if sha256(msg.ciphertext).digest() != msg.ct_hash:  # I1
        return Refuse(Refusal.CT_HASH, {"field": "ct_hash"})
    return fault or msg


def _check_ciphertext(ciphertext: bytes, limits: Limits) -> Refuse | None:
    """Return FIELD_SIZE, which ranks near the top of the table, or CT_PADDING, which ranks at its end, or None."""
    try:
        Parts.check(ciphertext, limits)
    except PaddingError:
        return Refuse(Refusal.CT_PADDING, {"field": "ciphertext"})
    except LimitError as exc:
        return Refuse(Refusal.FIELD_SIZE, {"field": exc.name, "actual": exc.actual, "max_allowed": exc.maximum})
    except FieldSizeError as exc:
        return Refuse(Refusal.FIELD_SIZE, {"field": exc.where, "expected": exc.expected, "actual": exc.actual})
    return None


def decide(
    state: LogState,
    policy: Policy,
    resolver: Resolver,
    msg: Msg | Checked,
    hub_ts: int,
    find_entry: FindEntry,
    *,
    size: int = 0,
) -> Accept | Refuse:
    """Run the checks after the signature: the auth stage and the commit stage. `size` is the number of bytes of the
    MSG."""
    decision = _decide(state, policy, resolver, msg, hub_ts, size)
    return with_location(state, msg, decision, find_entry) if isinstance(decision, Refuse) else decision


def with_location(state: LogState, msg: Msg | Checked, refuse: Refuse, find_entry: FindEntry) -> Refuse:
    """Add the place of the message to a refusal, if the log has an equal leaf for its (label, client_id, client_seq)
    (D-161)."""
    label = state.labels.get(msg.label)
    cursor = state.client(label, msg.client_id) if label else None
    if label is None or cursor is None or not 1 <= msg.client_seq <= cursor.client_seq:
        return refuse
    entry = find_entry(label, cursor.row, msg.client_seq)
    if entry is None or entry[1] != msg.leaf_hash():
        return refuse
    return replace(refuse, detail={**refuse.detail, "label": msg.label.hex(), "stream_seq": entry[0]})


def _decide(
    state: LogState, policy: Policy, resolver: Resolver, msg: Msg | Checked, hub_ts: int, size: int
) -> Accept | Refuse:
    label = state.labels.get(msg.label)
    cap = state.caps.get(msg.auth_ref) if msg.auth_ref is not None else None
    # (stream_id, epoch) of the message's label; the stream_id is empty if the hub does not know it (D-24).
    place = (label.stream_id or b"", label.epoch) if label else _resolve(resolver, msg, cap, hub_ts, policy)
    records: list[Wire] = []
    kex1 = policy.kex1

    if (
        policy.auth1 is not None
        and place is not None
        and (refused := _check_authority(state, policy.auth1, place[0], hub_ts))
    ):
        return refused

    if msg.auth_ref is None:
        if policy.capability_gating:
            return Refuse(Refusal.CAP_MISSING, {"field": "auth_ref"})
    else:
        if cap is None:
            token = policy.preloaded.get(msg.auth_ref)
            if token is None:
                return Refuse(Refusal.CAP_MISSING, {"field": "auth_ref"})
            cap = Cap.begin(token, state.limits, hub_ts)
            records.append(CapAuthorize.of(token))
        if refused := check_issuer(state, policy, cap):
            return refused
        if cap.token.subject_pk != msg.client_id:
            return Refuse(Refusal.AUTH_REF, {"field": "subject_pk"})
    if place is None or (cap is not None and not _in_scope(cap.token, place, policy)):
        return Refuse(Refusal.CAP_SCOPE, {"label": msg.label.hex()})
    if 0 < (largest := state.policies.max_msg_bytes(msg.label, place[0], hub_ts)) < size:  # D-127
        return Refuse(Refusal.FIELD_SIZE, {"field": "msg", "actual": size, "max_allowed": largest})
    if kex1 is not None and (refused := check_revocation(state, cap, msg.client_id, hub_ts)):
        return refused
    if cap is not None:
        if refused := check_live(state, cap, hub_ts):
            return refused
        for payer in state.payers(cap.auth_ref) if not records else (cap,):
            if payer.available(hub_ts, state.limits) < 1:
                per_sec, burst = payer.token.allow.bucket(state.limits)
                return Refuse(Refusal.CAP_RATE, retry_after=1 if per_sec and burst else None)
    if kex1 is not None and (refused := _check_bounds(state, kex1, label, msg, hub_ts)):
        return refused

    if refused := _check_sequence(state, label, msg):
        return refused
    stream_id, epoch = place
    current = resolver.current_epoch(hub_ts)
    if abs(epoch - current) > resolver.window:
        return Refuse(Refusal.EPOCH, {"expected": current, "actual": epoch})
    if label is None:
        records.append(LabelOpen(label=msg.label, epoch=epoch, stream_id=stream_id or None))
    return Accept(tuple(records)) if records else _ACCEPT


def _resolve(
    resolver: Resolver, msg: Msg | Checked, cap: Cap | None, hub_ts: int, policy: Policy
) -> tuple[bytes, int] | None:
    """Return (stream_id, epoch) of a label without entries; None if it is out of scope."""
    token = cap.token if cap is not None else policy.preloaded.get(msg.auth_ref or b"")
    place = resolver.resolve(msg.label, hub_ts, msg.auth_ref, token)
    if place is None and policy.stream_scope == "open":
        return b"", 0
    return place


def _check_authority(state: LogState, auth1: Auth1, stream_id: bytes, hub_ts: int) -> Refuse | None:
    """Check AUTH1 §3.3. A stream that the hub does not know (D-24) has no authority that could be looked up."""
    active = state.policies.authority(auth1.realm_id, stream_id, hub_ts) if stream_id else None
    if active is None:
        return None if auth1.accept_unspecified else Refuse(Refusal.NOT_PRIMARY, {"policy": "unspecified"})
    if active.policy == SINGLE_PRIMARY and active.primary_hub != auth1.hub_id:
        return Refuse(Refusal.NOT_PRIMARY, {"policy": active.policy, "primary_hub": active.primary_hub.hex()})
    return None


def check_revocation(state: LogState, cap: Cap | None, client_id: bytes, hub_ts: int) -> Refuse | None:
    """Check revocations of a capability, then of the client key (KEX1+ §4.3)."""
    view = state.policies
    until = None
    if cap is not None:
        if refused := check_token(state, cap, hub_ts):
            return refused
        if cap.parent_ref is not None:
            parent = state.caps[cap.parent_ref]
            if refused := check_token(state, parent, hub_ts):
                return refused
            until = view.revocation_end(
                "client-id", parent.token.subject_pk, hub_ts
            )  # the principal, with all its keys
    if until is None:
        until = view.revocation_end("client-id", client_id, hub_ts)
    return None if until is None else Refuse(Refusal.CLIENT_REVOKED, _detail_of_revocation("client_id", until))


def check_token(state: LogState, cap: Cap, hub_ts: int) -> Refuse | None:
    """Check revocations of a capability by auth_ref, by the hash of its bytes, and by each link of its chain
    (D-173)."""
    view = state.policies
    until = view.revocation_end("auth-ref", cap.auth_ref, hub_ts)
    if until is None:
        until = view.token_revocation_end(cap.token, cap.token_bytes, hub_ts)
    return None if until is None else Refuse(Refusal.CAP_REVOKED, _detail_of_revocation("auth_ref", until))


def _detail_of_revocation(field_name: str, until: int) -> dict[str, Any]:
    return {"field": field_name} if until >= FOREVER else {"field": field_name, "revoked_until": until}


def _check_bounds(state: LogState, kex1: Kex1, label: Label | None, msg: Msg | Checked, hub_ts: int) -> Refuse | None:
    """Check the bounds of client keys (KEX1+ §4.1). A client numbers its messages without gaps (I8), so its cursor
    counts them."""
    first_ts = state.first_ts(msg.client_id)
    if first_ts is not None and hub_ts - first_ts > kex1.max_client_id_lifetime_sec:
        last = first_ts + kex1.max_client_id_lifetime_sec
        return Refuse(Refusal.CLIENT_LIFETIME, {"field": "client_id", "expected": last, "actual": hub_ts})
    cursor = state.client(label, msg.client_id) if label else None
    if cursor is not None and cursor.client_seq >= kex1.max_msgs_per_client_id_per_label:
        maximum = kex1.max_msgs_per_client_id_per_label
        return Refuse(Refusal.CLIENT_QUOTA, {"field": "client_id", "max_allowed": maximum})
    return None


def check_issuer(state: LogState, policy: Policy, cap: Cap) -> Refuse | None:
    """Refuse a capability without a trusted issuer: its own, or that of the token it is derived from."""
    if cap.parent_ref is None:
        trusted = policy.trusts(cap.token)
    else:
        trusted = policy.principal_grants and policy.trusts(state.caps[cap.parent_ref].token)
    return None if trusted else Refuse(Refusal.CAP_INVALID, {"field": "issuer_pk"})


def check_live(state: LogState, cap: Cap, hub_ts: int) -> Refuse | None:
    """Refuse a capability whose ttl is over, or whose parent's is (D-48)."""
    for each in (cap,) if cap.parent_ref is None else (cap, state.caps[cap.parent_ref]):
        if not each.token.is_live(issued_at=each.issued_at, hub_ts=hub_ts):
            return Refuse(Refusal.CAP_TTL, {"expected": each.issued_at + each.token.allow.ttl, "actual": hub_ts})
    return None


def check_derive(state: LogState, policy: Policy, token: CapToken, parent_ref: bytes, hub_ts: int) -> Refuse | None:
    """Check that the hub may accept `token` from the subject of the capability `parent_ref` (D-179). One step only."""
    parent = state.caps.get(parent_ref)
    if parent is None:
        return Refuse(Refusal.CAP_MISSING, {"field": "parent_ref"})
    if parent.parent_ref is not None or not policy.trusts(parent.token):
        return Refuse(Refusal.CAP_INVALID, {"field": "parent_ref"})
    try:
        token.check_derived_from(parent.token)
    except CapabilityError:
        if token.issuer_pk != parent.token.subject_pk:
            return Refuse(Refusal.CAP_INVALID, {"field": "issuer_pk"})
        return Refuse(Refusal.CAP_SCOPE, {"field": "stream_ids"})
    if policy.kex1 is not None:
        fresh = Cap.begin(token, state.limits, hub_ts)
        if refused := check_token(state, fresh, hub_ts) or check_revocation(state, parent, token.issuer_pk, hub_ts):
            return refused
    return check_live(state, parent, hub_ts)


def _in_scope(token: CapToken, place: tuple[bytes, int], policy: Policy) -> bool:
    stream_id = place[0]
    return stream_id in token.allow.stream_ids if stream_id else policy.stream_scope == "open"


def _check_sequence(state: LogState, label: Label | None, msg: Msg | Checked) -> Refuse | None:
    """Check I6, I8 and I9 against the cursors."""
    head = last = acked = 0
    if label is not None:
        head, cursor = label.mmr.size, state.client(label, msg.client_id)
        if cursor is not None:
            last, acked = cursor.client_seq, cursor.prev_ack
    if not acked <= msg.prev_ack <= head:
        return Refuse(Refusal.PREV_ACK, {"field": "prev_ack", "actual": msg.prev_ack, "expected": f"{acked}..{head}"})
    if 1 <= msg.client_seq <= last:
        return Refuse(Refusal.DUPLICATE, {"field": "client_seq", "expected": last + 1, "actual": msg.client_seq})
    if msg.client_seq != last + 1:
        return Refuse(Refusal.CLIENT_SEQ, {"field": "client_seq", "expected": last + 1, "actual": msg.client_seq})
    return None
