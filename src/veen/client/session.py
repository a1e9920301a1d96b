"""The verified connection to one hub: its keys, clock and limits, and its statements about labels.

Every statement that leaves this module is verified: signatures under the pinned identity, numbers against the
request, epochs against the time in the receipt. Unsigned statements of the hub about itself (profiles, limits, its
clock) only shape the messages that are sent; a lie there is a refusal later, and never accepted as a fact (spec §12,
CLNT-06).

`PinnedHub` is a hub for administrators and agents: an address, a pinned key, a token; it needs no identity.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

from veen.client.errors import (
    BadAnswer,
    Divergence,
    ForeignKey,
    HubIdChanged,
    HubRefused,
    LocalError,
    OlderHub,
    ProofInvalid,
    ReceiptMismatch,
    RetiredKey,
    StaleCheckpoint,
)
from veen.client.state import StateStore
from veen.client.transport import calls as wire_calls
from veen.client.transport.calls import NOTHING, Calls, Retry, is_not_found
from veen.client.transport.http import CALL_SECONDS
from veen.client.transport.hubapi import label_pages, status_of
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, ProofError, VerifyError
from veen.core.labels import epoch_at, epoch_window, label_of, routing_key_of
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects import envelopes, tooling
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import ConsistencyProof, MmrProof

ROTATIONS: Final = "tooling/key_rotations"
_MAX_TOKENS: Final = 4_096


class OutsideEpoch(Divergence, code="E.DIVERGED.EPOCH"):
    """A receipt whose hub_ts lies outside the time in which its label may be written (I12, spec §12)."""


class HubSession:
    """One pinned hub. Call `open` first."""

    def __init__(
        self,
        calls: Calls,
        pin: HubPin,
        *,
        store: StateStore | None = None,
        limits: Limits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.calls, self.pin = calls, pin
        # True: any hub that the pinned root signed may answer, unless it is older than the newest one met.
        self._newest_of_root = pin.root_pk is not None and pin.hub_id is None
        self.replaced_hubs: tuple[bytes, ...] = ()  # set once, by the first contact with a new hub of a known root
        self._store, self._own_limits, self._clock = store, limits, clock
        self._status: tooling.StatusResponse | None = None  # the last answer; None before `open`
        self.limits = limits  # the hub's and ours, the smaller of each; changes with `_status`
        self._offset = 0.0  # the hub's clock minus ours, as of the last `_status`
        self._refreshing = asyncio.Lock()  # one refresh of identity or status at a time
        self._tokens: OrderedDict[bytes, CapToken | None] = OrderedDict()  # by auth_ref; None: no token
        self.routing_key = b""  # of `hub_id`; empty before `open`

    # --- the hub ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read identity and status of the hub. Raise ForeignKey if it is not the pinned hub."""
        await self.refresh_identity()
        await self.refresh_status()

    async def refresh_identity(self) -> tooling.IdentityResponse:
        async with self._refreshing:
            answer = await self.calls.ask("tooling/identity", NOTHING, tooling.IdentityResponse)
            pin = self._find_pin(answer.hub_id)
            rotations = await self.rotations() if pin.needs_rotations(answer) else ()
            learned = pin.learn(answer, rotations)
            self._remember(learned, frozenset(key.hub_pk for key in answer.hub_keys))
            self.pin = learned
            self.routing_key = routing_key_of(self.hub_id)
            return answer

    def _records(self) -> list[HubPin]:
        """Return the stored pins of this kind: a record of a root counts only if this root is pinned."""
        return [] if self._store is None else [pin for pin in self._store.pins() if pin.root_pk == self.pin.root_pk]

    def _find_pin(self, told_hub_id: bytes) -> HubPin:
        """Return the pin with the facts proven before, looked up by its keys, never by a statement of the hub
        (D-174).

        Only a root, which has many hubs, leaves the choice to `told_hub_id`: `learn` checks that the root signed it.
        """
        if self.pin.root_pk is not None:
            hub_id = self.pin.hub_id or told_hub_id
            return next((pin for pin in self._records() if pin.hub_id == hub_id), self.pin)
        for remembered in self._records():
            if not remembered.shares_a_key_with(self.pin):
                continue
            if self.pin.hub_id not in (None, remembered.hub_id):
                raise HubIdChanged(
                    "the pinned hub_id is not the one that this key signed before",
                    expected=remembered.hub_id,
                    found=self.pin.hub_id,
                )
            if remembered.has(self.pin):
                return remembered
            return replace(self.pin, hub_id=remembered.hub_id)
        return self.pin

    def _remember(self, learned: HubPin, listed: frozenset[bytes]) -> None:
        """Save learned facts unless they take back earlier ones; `listed` are the keys of the identity."""
        if self._store is None:
            return
        records = self._records()
        if self._newest_of_root:
            _check_not_older(learned, records)
        for remembered in records:
            if remembered == learned:
                return
            if remembered.hub_id != learned.hub_id and remembered.shares_a_key_with(learned):
                raise HubIdChanged(
                    "a key of this hub signed another hub_id before", expected=remembered.hub_id, found=learned.hub_id
                )
            if remembered.hub_id == learned.hub_id and not listed.issuperset(key.hub_pk for key in remembered.keys):
                raise ForeignKey(
                    "the hub does not list a key that it proved before",
                    expected=remembered.newest.hub_pk,
                    found=learned.newest.hub_pk,
                )
        self._store.save_pin(learned)
        if learned.root_pk is not None and all(pin.hub_id != learned.hub_id for pin in records):
            self.replaced_hubs = tuple(pin.identity.hub_id for pin in records)

    async def rotations(self) -> tuple[ControlRecord, ...]:
        """Return the records by which keys introduced keys; none if the hub has none, which proves nothing."""
        try:
            answer = await self.calls.send(ROTATIONS, NOTHING.to_bytes())
        except HubRefused as exc:
            if is_not_found(exc):
                return ()
            raise
        try:
            return tuple(ControlRecord.from_bytes(item) for item in wire_calls.sequence(ROTATIONS, answer.body))
        except FormatError as exc:
            raise BadAnswer(f"{ROTATIONS}: not a control record: {exc}") from exc

    async def refresh_status(self) -> tooling.StatusResponse:
        status = await status_of(self.calls)
        if status.hub_id != self.hub_id:
            raise HubIdChanged(
                "another hub answers: its hub_id is not the pinned one", expected=self.hub_id, found=status.hub_id
            )
        self._status = status
        self.limits = self._stricter(status.limits)
        self._offset = status.hub_ts - self._clock()
        return status

    @property
    def hub_id(self) -> bytes:
        if self.pin.hub_id is None:
            raise LocalError("the session is not open yet")
        return self.pin.hub_id

    @property
    def status(self) -> tooling.StatusResponse:
        if self._status is None:
            raise LocalError("the session is not open yet")
        return self._status

    def _stricter(self, told: Mapping[str, Any]) -> Limits:
        """Return the stricter of the hub's limits and the client's own; invalid ones of the hub are ignored."""
        names = ("max_msg_bytes", "max_hdr_bytes", "max_body_bytes", "max_attachments_per_msg", "max_attachment_bytes")
        own = self._own_limits.to_json()
        lowered = {
            name: min(own[name], value)
            for name in (*names, "max_epoch_skew_sec")
            if type(value := told.get(name)) is int and value > 0
        }
        return Limits.from_json({**own, **lowered})

    @property
    def takes_derived(self) -> bool:
        """True if the hub accepts tokens that a principal issues for its client keys (D-179)."""
        most = self.status.limits.get("max_derived_per_day")
        return type(most) is int and most > 0

    def key_bound(self, name: str, own: int) -> int:
        """Return a bound of client keys: the lesser of the hub's, if it states one, and `own`."""
        stated = self.status.limits.get(name)
        return min(own, stated) if type(stated) is int and stated > 0 else own

    # --- names and time --------------------------------------------------------------------------------

    @property
    def epoch_sec(self) -> int:
        return self.status.profiles[0].epoch_sec  # all profiles of a hub share it (D-25)

    @property
    def window(self) -> int:
        skew = self.status.limits.get("max_epoch_skew_sec")
        return epoch_window(self.epoch_sec, skew if type(skew) is int else self._own_limits.max_epoch_skew_sec)

    def hub_now(self) -> int:
        """Return the hub's clock, estimated from its last status (CLNT-06)."""
        return max(int(self._clock() + self._offset), 0)

    def epoch_now(self) -> int:
        return epoch_at(self.hub_now(), self.epoch_sec)

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return label_of(self.routing_key, stream_id, epoch)

    def profile(self, profile_id: bytes | None = None) -> Profile:
        """Return the hub's first profile, or the one with this id."""
        for profile in self.status.profiles:
            if profile_id is None or profile.profile_id() == profile_id:
                return profile
        raise LocalError("the hub does not support this profile")

    # --- statements ------------------------------------------------------------------------------------

    async def check_receipt(self, receipt: Receipt, epoch: int | None = None) -> None:
        """Check hub_sig under a key valid at hub_ts, and the time within the epoch's. A hub may have rotated its key
        just now."""
        try:
            self.pin.check_receipt(receipt)
        except (ForeignKey, RetiredKey):
            await self.refresh_identity()
            self.pin.check_receipt(receipt)
        if epoch is not None:
            self.check_epoch(receipt, epoch)

    def check_epoch(self, receipt: Receipt, epoch: int) -> None:
        if not self.epoch_sec:
            return
        accepted = epoch_at(receipt.hub_ts, self.epoch_sec)
        if abs(accepted - epoch) > self.window:
            raise OutsideEpoch(
                "an entry was accepted outside the time of its label",
                label=receipt.label,
                seq=receipt.stream_seq,
                expected=epoch,
                found=accepted,
            )

    async def receipt(self, label: bytes, seq: int) -> Receipt:
        """Return a RECEIPT by number, with its signature checked."""
        receipt = (
            await self.calls.ask(
                "v1/receipt", envelopes.ReceiptRequest(label=label, stream_seq=seq), envelopes.ReceiptResponse
            )
        ).receipt
        if (receipt.label, receipt.stream_seq) != (label, seq):
            raise ReceiptMismatch(
                "the hub answers with the receipt of another entry",
                label=label,
                seq=seq,
                expected=seq,
                found=receipt.stream_seq,
            )
        await self.check_receipt(receipt)
        return receipt

    async def proof(self, receipt: Receipt) -> MmrProof:
        """Return the inclusion proof of an entry under the root of its own receipt (D-33)."""
        request = envelopes.ProofRequest(label=receipt.label, stream_seq=receipt.stream_seq)
        proof = (await self.calls.ask("v1/proof", request, envelopes.ProofResponse)).mmr_proof
        return _verify_proof(proof, receipt, receipt.stream_seq, receipt.mmr_root)

    async def proof_at(self, receipt: Receipt, tree_size: int, root: bytes) -> MmrProof:
        """Return the inclusion proof of an entry under a later trusted root (D-34)."""
        request = tooling.ProofAtRequest(label=receipt.label, stream_seq=receipt.stream_seq, tree_size=tree_size)
        proof = (await self.calls.ask("tooling/proof_at", request, envelopes.ProofResponse)).mmr_proof
        return _verify_proof(proof, receipt, tree_size, root)

    async def consistency(self, label: bytes, from_size: int, to_size: int) -> ConsistencyProof:
        """Return a consistency proof as the hub sends it. The caller verifies it against two roots."""
        request = tooling.ConsistencyRequest(label=label, from_size=from_size, to_size=to_size)
        return (await self.calls.ask("tooling/consistency", request, tooling.ConsistencyResponse)).consistency_proof

    async def checkpoint(self, stream_id: bytes | None, label: bytes, upto_seq: int | None = None) -> Checkpoint:
        """Return a signed CHECKPOINT of the requested label and size. The view decides if it fits the log."""
        if upto_seq is None:
            answer = await self.calls.ask(
                "tooling/checkpoint_latest", tooling.LabelRequest(label=label), envelopes.CheckpointResponse
            )
        else:
            request = envelopes.CheckpointRequest(label=label, upto_seq=upto_seq)
            answer = await self.calls.ask("v1/checkpoint", request, envelopes.CheckpointResponse)
        checkpoint = answer.checkpoint
        if checkpoint.label_curr != label or upto_seq not in (None, checkpoint.upto_seq):
            raise StaleCheckpoint(
                "the hub answers with another checkpoint than the one asked for",
                label=label,
                seq=upto_seq,
                expected=upto_seq,
                found=checkpoint.upto_seq,
            )
        try:
            self.pin.check_checkpoint(checkpoint, self.epoch_sec)
        except (ForeignKey, RetiredKey):
            await self.refresh_identity()
            self.pin.check_checkpoint(checkpoint, self.epoch_sec)
        if stream_id is not None:
            try:
                checkpoint.check_labels(self.routing_key, stream_id)
            except VerifyError as exc:
                raise OutsideEpoch(str(exc), label=label, seq=checkpoint.upto_seq) from exc
        if len(self.pin.keys) > 1:  # only then is there a choice of keys, and can there be witnesses
            last = await self.receipt(label, checkpoint.upto_seq)
            self.pin.check_seal(checkpoint, last.hub_ts)
        return checkpoint

    async def token(self, auth_ref: bytes) -> CapToken | None:
        """Return the checked cap_token of an auth_ref; None if the hub has no valid one."""
        if auth_ref not in self._tokens:
            self._tokens[auth_ref] = await self._ask_token(auth_ref)
            if len(self._tokens) > _MAX_TOKENS:
                self._tokens.popitem(last=False)
        return self._tokens[auth_ref]

    async def _ask_token(self, auth_ref: bytes) -> CapToken | None:
        try:
            status = await self.calls.ask(
                "tooling/cap_status", tooling.CapStatusRequest(auth_ref=auth_ref), tooling.CapStatusResponse
            )
            token = CapToken.from_bytes(status.token)
            token.verify()
        except HubRefused as exc:
            if is_not_found(exc):
                return None
            raise
        except (FormatError, VerifyError):
            return None
        return token if compare_digest(token.auth_ref(), auth_ref) else None

    async def client_cursor(
        self, key: SigningKey, label: bytes, client_seq: int | None = None
    ) -> tooling.ClientCursorResponse | None:
        """Return the hub's statement about a client key in a label; None from a hub without this operation.

        Unsigned: a hint about the receipt to request (D-162).
        """
        request = tooling.ClientCursorRequest.issue(key, label, ts=self.hub_now(), client_seq=client_seq)
        try:
            return await self.calls.ask("tooling/client_cursor", request, tooling.ClientCursorResponse)
        except HubRefused as exc:
            if is_not_found(exc):
                return None
            raise

    async def page(self, label: bytes, first: int, last: int | None, max_items: int) -> envelopes.StreamResponse:
        """Return entries with their receipts, as the hub sends them. The caller verifies them."""
        request = envelopes.StreamRequest(
            label=label, from_seq=first, to_seq=last, max_items=max_items, with_receipts=True
        )
        return await self.calls.ask("v1/stream", request, envelopes.StreamResponse)

    async def label_info(self, label: bytes) -> tooling.LabelInfo | None:
        """Return the hub's statement about the end of a label, None if it has no entry. Unsigned."""
        try:
            answer = await self.calls.ask(
                "tooling/inspect", tooling.InspectRequest(label=label), tooling.InspectResponse
            )
        except HubRefused as exc:
            if is_not_found(exc):
                return None
            raise
        return next((info for info in answer.labels if info.label == label), None)

    async def epochs_of(self, stream_id: bytes, epoch_min: int = 0) -> list[int]:
        """Return the epochs in which the hub states that a stream has entries, ascending."""
        if not self.epoch_sec:
            return [0] if await self.label_info(self.label(stream_id, 0)) else []
        return [
            info.epoch
            async for page in label_pages(self.calls, epoch_min)
            for info in page
            if info.label == self.label(stream_id, info.epoch)
        ]


def _check_not_older(hub: HubPin, records: Iterable[HubPin]) -> None:
    """Raise OlderHub if this hub began before a known one: a former hub's key must not replace the later hub
    (D-121).

    A hub begins with its first key. Hubs that began in the same second may replace each other.
    """
    begun = hub.keys[0].valid_from
    newer = max(records, key=lambda pin: pin.keys[0].valid_from, default=hub)
    if newer.hub_id != hub.hub_id and newer.keys[0].valid_from > begun:
        raise OlderHub(
            f"the pinned root signed this hub, which began at {begun}, but a hub that began at"
            f" {newer.keys[0].valid_from} has taken its place",
            expected=newer.hub_id,
            found=hub.hub_id,
        )


def _verify_proof(proof: MmrProof, receipt: Receipt, tree_size: int, root: bytes) -> MmrProof:
    try:
        proof.verify(
            leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, expected_root=root, tree_size=tree_size
        )
    except ProofError as exc:
        raise ProofInvalid(str(exc), label=receipt.label, seq=receipt.stream_seq) from exc
    return proof


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedHub:
    """The address of a hub and its pinned key."""

    name: str
    url: str
    pin: HubPin
    ca_file: Path | None = None
    token_file: Path | None = None
    insecure_http: bool = False

    @asynccontextmanager
    async def session(self, retry: Retry | None = None) -> AsyncIterator[HubSession]:
        """Connect and check the pin. Raise ForeignKey if another hub answers."""
        transport = open_transport(
            self.url,
            ca_file=self.ca_file,
            token_file=self.token_file,
            insecure_http=self.insecure_http,
            timeout=CALL_SECONDS,
        )
        try:
            session = HubSession(Calls(transport, retry), self.pin)
            await session.open()
            yield session
        finally:
            await transport.aclose()
