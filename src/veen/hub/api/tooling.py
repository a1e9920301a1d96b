"""The tooling operations: capabilities, proofs across sizes, checkpoints, the hub itself (D-61).

They read the same data as the data plane and change only the control journal and the attachment store. Who may
call which is in docs/api.md: an operation that changes the hub for others needs an administrator, one that carries
its own authority (a signed token, a proof of equivocation, an attachment with a grant) needs no role.
"""

import asyncio
import time
from collections import deque
from typing import Final

from veen.core import cbor
from veen.core.errors import ApiCode, CapabilityError, FieldSizeError, Refusal, SignatureError, VerifyError
from veen.core.limits import MAX_DERIVED_PER_DAY
from veen.core.lru import Lru
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, CapDerive, ControlRecord, StreamRegister
from veen.core.objects.envelopes import CheckpointResponse, ProofResponse
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import IdentityError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import (
    MAX_LISTED,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    CheckpointRangeRequest,
    ClientCursorRequest,
    ClientCursorResponse,
    ConsistencyRequest,
    ConsistencyResponse,
    DeriveRequest,
    InspectRequest,
    InspectResponse,
    LabelInfo,
    LabelRequest,
    LegacyItem,
    OkResponse,
    ProofAtRequest,
    RecordResponse,
    RotateKeyRequest,
    StreamRegisterRequest,
    StreamsResponse,
    VersionRequest,
)
from veen.core.tree.proof import MmrProof, prove_consistency, prove_inclusion
from veen.core.wire import Wire
from veen.hub.admission.decide import Refuse, check_derive, check_token
from veen.hub.api.access import Role
from veen.hub.api.calls import ApiContext, Call, LabelOrder, bad_request, flag_field, hex_field, not_found, uint_field
from veen.hub.api.operations import Api, Handler
from veen.hub.api.pages import Tails, open_page, page_bounds
from veen.hub.api.reply import ApiError, Failure, Reply, dump_json
from veen.storage.keys.rotation import RotationUnderWayError
from veen.storage.label_files import LabelHead
from veen.storage.state import Cap

GET_LATEST: Final = "checkpoint_latest_get"  # the forms of 001 spec-1 §16
GET_RANGE: Final = "checkpoint_range_get"
_DAY: Final = 86_400
_MAX_PARENTS: Final = 10_000  # tokens whose derived tokens are counted; each was authorised
_TURN: Final = 8  # signatures or proofs made in one turn of the event loop


class DerivedCount:
    """The number of new derived tokens of each parent within a day of hub_ts. Each one is a record that stays
    forever.

    It is kept only in memory, because it guards the disk and decides about no message.
    """

    def __init__(self, most: int = MAX_DERIVED_PER_DAY) -> None:
        self._most = most
        self._times: Lru[bytes, deque[int]] = Lru(_MAX_PARENTS)

    def take(self, parent_ref: bytes, hub_ts: int) -> bool:
        """Count one more; return False if the parent has used up its number of this day."""
        times = self._times.get(parent_ref)
        if times is None:
            times = deque()
            self._times.put(parent_ref, times)
        while times and times[0] <= hub_ts - _DAY:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(hub_ts)
        return True


class Tooling:
    """The operations beyond the data plane; `operations` goes to `Api.add`."""

    def __init__(self, api: Api, order: LabelOrder, tails: Tails) -> None:
        self._api, self._context, self._services = api, api.context, api.services
        self._order, self._tails = order, tails
        self._services.resolver.add(self._context.control.stream_ids())
        api.on_close(tails.close)
        api.on_reload(tails.wake)
        self._authorizing: dict[bytes, asyncio.Future[ControlRecord | None]] = {}
        self._derived = DerivedCount()

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {
            "submit_batch": (Role.ANY, self._api.submits.batch),
            "authorize": (Role.ANY, self._authorize),
            "derive": (Role.ANY, self._derive),
            "cap_status": (Role.READ, self._cap_status),
            "streams": (Role.ADMIN, self._streams),
            "streams_list": (Role.ADMIN, self._streams_list),
            "rotate_key": (Role.ADMIN, self._rotate_key),
            "key_rotations": (Role.ANY, self._key_rotations),
            "proof_at": (Role.READ, self._proof_at),
            "consistency": (Role.READ, self._consistency),
            "checkpoint_latest": (Role.READ, self._checkpoint_latest),
            "checkpoint_range": (Role.READ, self._checkpoint_range),
            GET_LATEST: (Role.READ, self._checkpoint_latest),
            GET_RANGE: (Role.READ, self._checkpoint_range),
            "client_cursor": (Role.ANY, self._client_cursor),
            "inspect": (Role.READ, self._inspect),
            "report_equivocation": (Role.ANY, self._report_equivocation),
            "legacy_stream": (Role.READ, self._legacy_stream),
            "tail": (Role.READ, self._tails.tail),
            "events": (Role.READ, self._tails.events),
        }

    def _ok(self, answer: Wire, call: Call) -> Reply:
        return self._api.replies.ok(answer, call.answer)

    # --- capabilities and streams ------------------------------------------------------------------------

    async def _authorize(self, call: Call) -> Reply:
        """Journal a token. The token is the authority: its issuer has signed it, whoever brings it (D-46, D-47)."""
        try:
            token = self._context.read(call, CapToken)
        except ApiError as exc:
            if isinstance(exc.__cause__, FieldSizeError):  # too many links or streams, or a key of another size (D-43)
                return self._refuse(Refuse(Refusal.FIELD_SIZE, {"field": exc.__cause__.where}), call)
            raise
        if not self._services.policy.trusts(token):
            return self._refuse(Refuse(Refusal.CAP_INVALID, {"field": "issuer_pk"}), call)
        if self._services.policy.kex1 is not None:  # before its signatures are verified (D-173)
            state, now = self._context.store.state, self._services.sequencer.now()
            if (refused := check_token(state, Cap.begin(token, state.limits, now), now)) is not None:
                return self._refuse(refused, call)
        try:
            token.verify()
        except CapabilityError:
            return self._refuse(Refuse(Refusal.CAP_INVALID, {"field": "sig_chain"}), call)
        record = await self._cap_record(token, CapAuthorize.of(token))
        return self._authorize_reply(token, record, call)

    def _authorize_reply(self, token: CapToken, record: ControlRecord, call: Call) -> Reply:
        answer = AuthorizeResponse(auth_ref=token.auth_ref(), expires_at=self._expires_at(token, record), record=record)
        return self._ok(answer, call)

    def _expires_at(self, token: CapToken, record: ControlRecord) -> int:
        """Return the last second in which a token counts: a derived one ends with its parent."""
        ends = [min(record.hub_ts + token.allow.ttl, cbor.U64_MAX)]
        if isinstance(record.body, CapDerive):
            parent = self._context.store.state.caps[record.body.parent_ref]
            ends.append(parent.issued_at + parent.token.allow.ttl)
        return min(ends)

    async def _derive(self, call: Call) -> Reply:
        """Journal a token that the subject of a trusted one issued for a client key (D-179)."""
        request, services = self._context.read(call, DeriveRequest), self._services
        token, policy = request.token, services.policy
        if not policy.principal_grants:
            detail = {"field": "token", "setting": "admission.principal_grants"}
            raise ApiError(ApiCode.CONFLICT, "this hub takes no derived tokens", detail=detail)
        if (preloaded := policy.preloaded.get(request.parent_ref)) is not None:
            await self._cap_record(preloaded, CapAuthorize.of(preloaded))
        state, now = self._context.store.state, services.sequencer.now()
        if (refused := check_derive(state, policy, token, request.parent_ref, now)) is not None:
            return self._refuse(refused, call)
        try:
            token.verify()
        except CapabilityError:
            return self._refuse(Refuse(Refusal.CAP_INVALID, {"field": "sig_chain"}), call)
        if self._find_cap(token.auth_ref()) is None and not self._derived.take(request.parent_ref, now):
            return self._refuse(Refuse(Refusal.CAP_RATE, {"field": "parent_ref"}, retry_after=_DAY), call)
        record = await self._cap_record(token, CapDerive.from_parent(token, request.parent_ref))
        return self._authorize_reply(token, record, call)

    def _refuse(self, refuse: Refuse, call: Call) -> Reply:
        refusal = refuse.refusal
        self._services.observer.on_failed(
            Failure(
                operation=call.operation,
                code=refusal.code,
                status=refusal.http_status,
                request_id=refuse.request_id,
                reason="",
                field=str(refuse.detail.get("field", "")),
                detail=refusal.detail_enum,
                address=call.principal.address,
            )
        )
        return self._api.replies.of_refusal(refuse, call.answer)

    async def _cap_record(self, token: CapToken, body: CapAuthorize) -> ControlRecord:
        """Return the first record about a token; make it if there is none. Two concurrent callers get the same."""
        auth_ref = token.auth_ref()
        while (running := self._authorizing.get(auth_ref)) is not None:
            await asyncio.wait((running,))
        if (record := self._find_cap(auth_ref)) is not None:
            return record
        caps = self._context.store.state.caps
        making = asyncio.ensure_future(self._services.sequencer.control(lambda _: None if auth_ref in caps else body))
        self._authorizing[auth_ref] = making
        try:
            journaled = await making
        finally:
            del self._authorizing[auth_ref]
        if journaled is not None:
            return journaled
        # A message used a preloaded token a moment ago: its record is on the way to the disk.
        await self._services.sequencer.drain()
        if (record := self._find_cap(auth_ref)) is None:
            raise ApiError.unavailable("the record of this token is not durable yet")
        return record

    def _find_cap(self, auth_ref: bytes) -> ControlRecord | None:
        return self._context.control.cap(auth_ref)

    async def _cap_status(self, call: Call) -> Reply:
        request = self._context.read(call, CapStatusRequest)
        cap = self._context.store.state.caps.get(request.auth_ref)
        record = self._find_cap(request.auth_ref)
        if cap is None or record is None:  # the sequencer may be ahead of the disk
            raise not_found("no capability with this auth_ref was authorised")
        expires_at = self._expires_at(cap.token, record)
        return self._ok(CapStatusResponse(token=cap.token_bytes, issued_at=cap.issued_at, expires_at=expires_at), call)

    async def _streams(self, call: Call) -> Reply:
        """Register a stream, so that its labels resolve although no token names it (D-23)."""
        request = self._context.read(call, StreamRegisterRequest)
        record = self._context.control.stream(request.stream_id)
        if record is None:
            record = await self._services.sequencer.control(lambda _: StreamRegister(stream_id=request.stream_id))
            self._services.resolver.add((request.stream_id,))
        assert record is not None  # noqa: S101 - `make` always returns a body
        return self._ok(RecordResponse(record=record), call)

    async def _streams_list(self, call: Call) -> Reply:
        stream_ids = sorted({*self._context.control.stream_ids(), *self._services.policy.streams})
        return self._ok(StreamsResponse(stream_ids=tuple(stream_ids)), call)

    async def _key_rotations(self, call: Call) -> Reply:
        """Answer with the records that lead from the first key to the others, for a client that pinned an old key."""
        self._context.read(call, VersionRequest)
        records = self._context.control.rotations()
        items = [dump_json(record.to_json()) if call.answer == "json" else record.to_bytes() for record in records]
        return self._api.replies.sequence(items, call.answer)

    async def _rotate_key(self, call: Call) -> Reply:
        """Rotate the hub's key. The identity lists the new key from now on; it signs once it is valid (D-41)."""
        request = self._context.read(call, RotateKeyRequest)
        if (reason := self._services.not_admitting) is not None:
            raise ApiError.unavailable(reason)
        try:
            record = await self._services.rotate_key(request.overlap_sec, request.request_id)
        except RotationUnderWayError as exc:
            detail = {"reason": "rotation_under_way", "until": exc.until}
            raise ApiError(ApiCode.CONFLICT, str(exc), detail=detail) from exc
        except IdentityError as exc:
            raise ApiError(ApiCode.CONFLICT, str(exc), detail={"field": "overlap_sec"}) from exc
        return self._ok(RecordResponse(record=record), call)

    # --- proofs and checkpoints --------------------------------------------------------------------------

    async def _proof_at(self, call: Call) -> Reply:
        request = self._context.read(call, ProofAtRequest)
        files = self._context.entry(request.label, request.stream_seq)
        self._context.entry(request.label, request.tree_size, "tree_size")
        if request.stream_seq > request.tree_size:
            raise bad_request("the tree is smaller than the number of the entry", "tree_size")
        started = time.perf_counter()
        proof = prove_inclusion(files.node_at, request.stream_seq, request.tree_size)
        self._services.observer.on_proved(time.perf_counter() - started)
        return self._ok(ProofResponse(mmr_proof=proof, server_version=self._services.server_version), call)

    async def _consistency(self, call: Call) -> Reply:
        request = self._context.read(call, ConsistencyRequest)
        files = self._context.entry(request.label, request.from_size, "from_size")
        self._context.entry(request.label, request.to_size, "to_size")
        if request.from_size > request.to_size:
            raise bad_request("a log cannot become smaller", "to_size")
        started = time.perf_counter()
        proof = prove_consistency(files.node_at, request.from_size, request.to_size)
        self._services.observer.on_proved(time.perf_counter() - started)
        version = self._services.server_version
        return self._ok(ConsistencyResponse(consistency_proof=proof, server_version=version), call)

    async def _checkpoint_latest(self, call: Call) -> Reply:
        files = self._context.files(checkpoint_label(self._context, call))
        checkpoint = self._context.latest_checkpoint(files.head())
        return self._ok(checkpoint_answer(checkpoint, self._services.server_version, call), call)

    async def _checkpoint_range(self, call: Call) -> Reply:
        """Answer with the latest checkpoint of each label, by (epoch, label); the next page follows a list of
        MAX_LISTED (D-65)."""
        request = checkpoint_range(self._context, call)
        items: list[bytes] = []
        if request.label is not None:
            files = self._context.store.files(request.label)
            if files is not None and request.epoch_min <= files.epoch <= request.epoch_max:
                items.append(self._encode_latest(files.head(), call))
            return self._api.replies.sequence(items, call.answer)
        listed = self._order.iterate(request.epoch_min, request.epoch_max, request.after, MAX_LISTED)
        heads = [head async for head in listed]
        items = await self._context.read_worker.each(lambda head: self._encode_latest(head, call), heads)
        return self._api.replies.sequence(items, call.answer)

    def _encode_latest(self, head: LabelHead, call: Call) -> bytes:
        checkpoint = self._context.latest_checkpoint(head)
        return dump_json(checkpoint.to_json()) if call.answer == "json" else checkpoint.to_bytes()

    async def _client_cursor(self, call: Call) -> Reply:
        """Answer with a client's own cursor. The signature is the authority, and shows nothing of other clients
        (D-162).

        A label that does not exist and a label without entries of this client have the same answer.
        """
        request = self._context.read(call, ClientCursorRequest)
        hub_ts, skew = self._services.sequencer.now(), self._context.limits.max_epoch_skew_sec
        if abs(request.ts - hub_ts) > skew:  # before the signature: a comparison costs nothing
            detail = {"expected": f"{max(hub_ts - skew, 0)}..{hub_ts + skew}", "actual": request.ts}
            raise bad_request("the request was not made now: compare the clocks", "ts", **detail)
        try:
            request.verify()
        except SignatureError:
            return self._refuse(Refuse(Refusal.SIG_INVALID, {"field": "sig"}), call)
        store = self._context.store
        cursor = store.find_applied_client(request.label, request.client_id)
        if cursor is None:
            return self._ok(ClientCursorResponse(last_client_seq=0, last_prev_ack=0), call)
        wanted = request.client_seq or 0
        accepted = 1 <= wanted <= cursor.client_seq  # no index is asked for a number it could not hold
        entry = store.find_applied_entry(request.label, cursor.row, wanted) if accepted else None
        stream_seq, leaf = entry or (None, None)
        answer = ClientCursorResponse(
            last_client_seq=cursor.client_seq, last_prev_ack=cursor.prev_ack, stream_seq=stream_seq, leaf=leaf
        )
        return self._ok(answer, call)

    async def _inspect(self, call: Call) -> Reply:
        """Answer with sizes and roots of labels, without reading an entry."""
        request = self._context.read(call, InspectRequest)
        if request.label is not None:
            heads = [self._context.files(request.label).head()]
        else:
            epoch = request.after_epoch or 0
            heads = [head async for head in self._order.iterate(epoch, cbor.U64_MAX, request.after, MAX_LISTED + 1)]
        count, more = len(self._order), len(heads) > MAX_LISTED

        def answer() -> Reply:
            labels = tuple(label_info(head) for head in heads[:MAX_LISTED])
            return self._ok(InspectResponse(label_count=count, labels=labels, more=more), call)

        return answer() if len(heads) <= _TURN else await self._context.read_worker.run(answer)

    async def _report_equivocation(self, call: Call) -> Reply:
        """Store a proof against this hub's own keys, which nobody can forge (RCPT-07); refuse any other."""
        evidence = self._context.read(call, Equivocation)
        if not set(evidence.hub_pks) <= {key.hub_pk for key in self._services.identity.keys}:
            raise ApiError(ApiCode.BAD_REQUEST, "the keys are not of this hub", detail={"field": "hub_pks"})
        try:
            evidence.verify()
        except VerifyError as exc:
            raise ApiError(ApiCode.BAD_REQUEST, str(exc)) from exc
        await asyncio.get_running_loop().run_in_executor(None, self._services.keep_evidence, evidence)
        return self._ok(OkResponse(ok=True), call)

    # --- the older way to read ---------------------------------------------------------------------------

    async def _legacy_stream(self, call: Call) -> Reply:
        """Answer GET label, from, with_proof: one page as a sequence of {1: receipt, 2: msg, 3: mmr_proof?}."""
        label = hex_field(call.query, "label", 32)
        start = uint_field(call.query, "from", 1)
        with_proof = flag_field(call.query, "with_proof")
        files = self._context.files(label)
        first, last, count = page_bounds(files, start, None, None)
        proofs: list[MmrProof | None] = []
        async with open_page(self._context, files, first, last, count) as page:
            for frame in page.frames:
                proofs.append(prove_inclusion(files.node_at, frame.stream_seq) if with_proof else None)
                if len(proofs) % _TURN == 0:
                    await self._context.priority.wait()

            def encode(position: int) -> bytes:
                frame = page.frames[position]
                item = LegacyItem(
                    receipt=Receipt.from_bytes(frame.receipt), msg=Msg.from_bytes(frame.msg), mmr_proof=proofs[position]
                )
                return dump_json(item.to_json()) if call.answer == "json" else item.to_bytes()

            items = await self._context.read_worker.each(encode, range(len(page.frames)))
            return self._api.replies.sequence(items, call.answer)


def checkpoint_label(context: ApiContext, call: Call) -> bytes:
    """Return the label of the requested checkpoint, from POST or GET (001 spec-1 §16)."""
    if call.operation == GET_LATEST:
        return hex_field(call.query, "label", 32)
    return context.read(call, LabelRequest).label


def checkpoint_answer(checkpoint: Checkpoint, server_version: str, call: Call) -> Wire:
    """Return the answer to POST, or the CHECKPOINT alone to GET, as 001 spec-1 §16 has it."""
    if call.operation == GET_LATEST:
        return checkpoint
    return CheckpointResponse(checkpoint=checkpoint, server_version=server_version)


def checkpoint_range(context: ApiContext, call: Call) -> CheckpointRangeRequest:
    """Return the requested range of epochs, from POST or GET; without parameters all epochs."""
    if call.operation != GET_RANGE:
        return context.read(call, CheckpointRangeRequest)
    query = call.query
    return CheckpointRangeRequest(
        epoch_min=uint_field(query, "epoch_min", 0),
        epoch_max=uint_field(query, "epoch_max", cbor.U64_MAX),
        label=hex_field(query, "label", 32) if "label" in query else None,
        after=hex_field(query, "after", 32) if "after" in query else None,
    )


def label_info(head: LabelHead) -> LabelInfo:
    return LabelInfo(
        label=head.label,
        epoch=head.epoch,
        last_stream_seq=head.size,
        last_mmr_root=head.root(),
        last_hub_ts=head.last_ts,
    )
