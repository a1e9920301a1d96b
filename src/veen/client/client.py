"""The client: send, read, follow, prove, over any transport, accepting nothing without proof (spec §9).

    pin = HubPin.parse("ed25519:…")
    async with await Client.connect(url, pin=pin, identity=identity, keyring=keyring, home=home) as client:
        sent = await client.send("orders", b"hello")
        async for entry in client.read("orders"):
            print(entry.seq, entry.body)

One client is one identity at one hub. It may be used by many tasks at once; messages to one label go out in turn.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from veen.client.errors import HubRefused, LocalError, NetworkError, NotPinned
from veen.client.evidence_file import EvidenceExport
from veen.client.generations.fold import KeyState
from veen.client.generations.following import KeyFollower, StreamFollow
from veen.client.home import Home
from veen.client.identity.identity import Identity, Random
from veen.client.identity.keyring import Keyring, Stream, StreamKeys
from veen.client.identity.rotation import KeyHolder, KeyRotation, Ready, RotationBounds
from veen.client.read import frames
from veen.client.read.attachments import Attachments
from veen.client.read.reading import Entry, LabelReader, Resynced
from veen.client.read.streams import ErasedRange, follow_labels, merge_labels, read_kept, seek
from veen.client.send.captokens import TokenStore
from veen.client.send.grants import Grants
from veen.client.send.sealing import Attach, Draft, LabelAdvice, Prepared, SendAdvisor, SendRule
from veen.client.send.send_queue import SendQueue
from veen.client.send.submitting import MAX_BATCH_BYTES, batches
from veen.client.send.writing import KEY_ENDED, Outcome, Sent
from veen.client.session import HubSession
from veen.client.state import LabelState, Mode, StateStore
from veen.client.transport.calls import Calls, Retry, Transport, error_of, read, refusal_of
from veen.client.transport.http import CALL_SECONDS
from veen.client.transport.opening import open_transport
from veen.client.verify.evidence import Evidence
from veen.client.verify.labels import Labels, Target
from veen.client.verify.pin import HubPin
from veen.core.errors import Refusal
from veen.core.labels import epoch_at, schema_id
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.objects.policies import Revocation, SizeBound
from veen.core.objects.profile import Profile
from veen.core.objects.speaking import AuthorKey
from veen.core.objects.tooling import (
    MAX_BATCH_ITEMS,
    ClientCursorResponse,
    IdentityResponse,
    PolicyRequest,
    PolicyResponse,
    ReadyResponse,
    StatusResponse,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from veen.core.tlog.policy import CosignedCheckpoint, WitnessPolicy

LOG: Final = logging.getLogger("veen")
_ROUNDS: Final = 4  # seals of one message before its refusal is final
_BATCH: Final = 64
_BOUNDS: Final = RotationBounds()


class Client:
    """A verified connection to one hub. Use `connect`, or `open` on a given transport."""

    def __init__(
        self,
        transport: Transport,
        pin: HubPin,
        identity: Identity,
        keyring: Keyring,
        state: StateStore,
        *,
        mode: Mode = "full",
        limits: Limits = DEFAULT_LIMITS,
        profile: Profile | None = None,
        bounds: RotationBounds | None = _BOUNDS,
        retry: Retry | None = None,
        clock: Callable[[], float] = time.time,
        random: Random = os.urandom,
        keys_learned: Callable[[Keyring], None] | None = None,
        rules: Sequence[SendRule] = (),
        advisor: SendAdvisor | None = None,
        holder: KeyHolder | None = None,
        tokens: TokenStore | None = None,
    ) -> None:
        """Set up a client. `keys_learned` is called with the whole keyring when a new generation of keys is found.

        `holder` keeps the client keys, so that they rotate by themselves; `tokens` are those of the identity.
        """
        self._transport = transport
        self._session = HubSession(Calls(transport, retry), pin, store=state, limits=limits, clock=clock)
        self._labels = Labels(self._session, state, identity, keyring, mode=mode, random=random, profile=profile)
        self._follower = KeyFollower(self._session, self._labels, state, identity, keys_learned)
        self._announcing = False  # True while the record of a new client key is on its way
        self._queues: dict[tuple[Stream, bytes | None], SendQueue] = {}  # by stream and auth_ref
        self._rules = tuple(rules)  # messages that they refuse are not sealed
        self._advisor = advisor
        self._may_send_at: dict[bytes, float] = {}  # label -> time at which its advised rate allows the next message
        self._closing = contextlib.AsyncExitStack()
        self._closing.push_async_callback(transport.aclose)
        self.grants = Grants(self._session, identity, tokens, issues=holder is not None and holder.issues_tokens)
        self._rotation = KeyRotation(self._session, self._labels, state, self.grants, identity, holder, bounds, clock)
        evidence = Evidence(self._session, self._labels)
        # One verb each, with signature and docstring of the module that does the work.
        self.receipt, self.proof, self.checkpoint = evidence.receipt, evidence.proof, evidence.checkpoint
        self.consistency, self.report_equivocation = evidence.consistency, evidence.report
        self.checkpoints, self.anchor = evidence.checkpoints, evidence.anchor
        export = EvidenceExport(self._session, self._labels, self.read)
        self.evidence, self.labels_of = export.export, export.labels_of
        self.authorize, self.cap_status = self.grants.authorize, self.grants.status

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        pin: HubPin | str | None,
        identity: Identity,
        keyring: Keyring = Keyring(),  # noqa: B008 - a value
        home: Home | None = None,
        mode: Mode = "full",
        ca_file: Path | None = None,
        client_cert: Path | None = None,
        client_key: Path | None = None,
        token_file: Path | None = None,
        insecure_http: bool = False,
        retry: Retry | None = None,
        call_seconds: float = CALL_SECONDS,
        bounds: RotationBounds | None = _BOUNDS,
        keys_learned: Callable[[Keyring], None] | None = None,
        rules: Sequence[SendRule] = (),
        advisor: SendAdvisor | None = None,
        holder: KeyHolder | None = None,
        tokens: TokenStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Connect by the transport of `url`, with the state of `identity` in `home`.

        Raise IdentityInUse if another process uses the identity.

        A token goes over plain HTTP only to this machine, unless `insecure_http` declares the network trusted.
        """
        if pin is None:
            raise NotPinned(f"no key of the hub at {url} is pinned")
        pin = HubPin.parse(pin) if isinstance(pin, str) else pin
        transport = open_transport(
            url,
            ca_file=ca_file,
            client_cert=client_cert,
            client_key=client_key,
            token_file=token_file,
            insecure_http=insecure_http,
            timeout=call_seconds,
        )
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(transport.aclose)
            state = undo.enter_context(StateStore.open(home or Home.default(), identity.name))
            client = cls(
                transport,
                pin,
                identity,
                keyring,
                state,
                mode=mode,
                retry=retry,
                bounds=bounds,
                clock=clock,
                keys_learned=keys_learned,
                rules=rules,
                advisor=advisor,
                holder=holder,
                tokens=tokens,
            )
            await client.open()
            undo.pop_all()
            client._closing.callback(state.close)
            return client

    async def open(self) -> Self:
        """Read the identity and status of the hub; raise ForeignKey if it is not the pinned hub."""
        await self._session.open()
        self._labels.keyring = self._follower.at_hub(self._labels.keyring)
        return self

    async def aclose(self) -> None:
        """Save what was verified, and close the connections. `async with` does it."""
        for queue in list(self._queues.values()):
            await queue.aclose()
        self._follower.save()
        await self._closing.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def pin(self) -> HubPin:
        """The trusted keys of the hub by now."""
        return self._session.pin

    @property
    def limits(self) -> Limits:
        """Limits for messages: the smaller of each of the hub's and of this client's."""
        return self._session.limits

    @property
    def hub_id(self) -> bytes:
        """The hub_id of the hub, pinned or learned on the first connection."""
        return self._session.hub_id

    @property
    def replaced_hubs(self) -> tuple[bytes, ...]:
        """Ids of hubs that the pinned root signed before, if this connection is the first contact with a new hub.

        Its log is another one and begins empty. Verified facts about the earlier hubs are kept.
        """
        return self._session.replaced_hubs

    async def check_witnesses(self, policy: "WitnessPolicy") -> "CosignedCheckpoint":
        """Return the newest note of the hub, cosigned as the policy requires; raise QuorumError if it is not."""
        from veen.client.verify.witnesses import check_cosigned  # only for contexts that require it

        return await check_cosigned(self._session, policy)

    @property
    def id_sign_pk(self) -> bytes:
        """Key of the identity that this client writes as."""
        return self._rotation.identity.id_sign_pk

    @property
    def client_id(self) -> bytes:
        """The key that signs what is sent."""
        return self._rotation.identity.client_id

    @property
    def client_ids(self) -> frozenset[bytes]:
        """Ids of the client keys that this identity has or had, as far as the keystore has them."""
        return frozenset(key.client_id for key in self._rotation.identity.client_keys)

    @property
    def keyring(self) -> Keyring:
        """The keys by now, with the generations that were found in streams."""
        return self._labels.keyring

    def use_personal_keys(self, stream_id: bytes, keys: tuple[StreamKeys, ...]) -> None:
        """Open a stream, given by its id, with keys that are not those of the keyring (`veen.client.personal`)."""
        self._labels.personal[stream_id] = keys

    def author(self, stream: Stream, client_id: bytes) -> AuthorKey | None:
        """Return the binding that an identity proved for a client key in a stream, from the part that was read."""
        follow = self._follower.of(stream)
        return None if follow is None else follow.fold.authors.get(client_id)

    async def key_state(self, stream: Stream) -> KeyState | None:
        """Return the generations and readers of a stream, by its log up to now; None if its owner is not known."""
        return await self._follower.sync(stream)

    def take_keys(self, keyring: Keyring) -> None:
        """Use another keyring from now on, for keys that were made or received while the client is connected."""
        self._follower.take(keyring)

    @property
    def attachments(self) -> Attachments:
        """The attachments of the hub: upload, download."""
        return self._labels.attachments

    async def status(self) -> StatusResponse:
        """Ask the hub for its status."""
        return await self._session.refresh_status()

    async def ready(self) -> ReadyResponse:
        """Return the readiness of the hub to admit messages, with the reason if it is not ready. Unsigned."""
        answer = await self._transport.call("readyz")
        if answer.status not in (200, 503):
            raise error_of("readyz", answer)
        return read("readyz", answer.body, ReadyResponse)

    @property
    def session(self) -> HubSession:
        """The connection, for modules with requests that have no verb here."""
        return self._session

    async def identity(self) -> IdentityResponse:
        """Return the hub's identity, accepted only if it follows from the pin."""
        return await self._session.refresh_identity()

    async def rotations(self) -> tuple[ControlRecord, ...]:
        """Return the records by which older keys of the hub introduced newer ones, as the hub sends them."""
        return await self._session.rotations()

    def label(self, stream: Stream, epoch: int | None = None) -> bytes:
        """Return the label of a stream, now or in an epoch."""
        return self._labels.at(stream, self._session.epoch_now() if epoch is None else epoch).label

    async def revoke(self, revocations: Sequence[Revocation]) -> tuple[ControlRecord, ...]:
        """Have the hub refuse these keys and tokens (administrators); return the signed records of new ones."""
        return await self._set_policy(PolicyRequest(revocations=tuple(revocations)))

    async def bound(self, bounds: Sequence[SizeBound]) -> tuple[ControlRecord, ...]:
        """Have the hub refuse larger messages of these labels (administrators); return the signed records of new
        bounds."""
        return await self._set_policy(PolicyRequest(bounds=tuple(bounds)))

    async def _set_policy(self, request: PolicyRequest) -> tuple[ControlRecord, ...]:
        records = (await self._session.calls.ask("tooling/policy", request, PolicyResponse)).records
        for record in records:
            self._session.pin.check_control(record)
        return records

    def learn_keys(self, keys: StreamKeys) -> None:
        """Use the keys of one more stream. The caller stores them (`Keystore.save`)."""
        self.take_keys(self.keyring.with_keys(keys))

    async def has_entries(self, stream_id: bytes) -> bool:
        """Return True if the hub states that a stream has entries. Requires no keys; unsigned."""
        return bool(await self._session.epochs_of(stream_id))

    # --- sending ---------------------------------------------------------------------------------------

    async def send(
        self,
        stream: Stream,
        body: bytes,
        *,
        schema: str | bytes | None = None,
        attachments: Sequence[Attach | bytes] = (),
        parent: bytes | None = None,
        expires_at: int | None = None,
        capability: CapToken | None = None,
        auth_ref: bytes | None = None,
        once: bool = False,
    ) -> Sent:
        """Seal and send a message, verify the receipt and its place in the log, then return.

        With `once`, a message with the same content that an earlier call could not deliver is this one: it is sent
        as it was sealed then, and no second one is sent (`Sent.is_late`).
        """
        draft = Draft(
            body=body,
            schema=None if schema is None else schema_id(schema),
            parent=parent,
            expires_at=expires_at,
            attachments=tuple(Attach(data=item) if isinstance(item, bytes) else item for item in attachments),
        )
        authority = await self._authority(stream, capability, auth_ref)
        if once:
            outcome = (await self._send_drafts(stream, [draft], 1, authority, once=True))[0]
        else:
            outcome = await self._queue_of(stream, authority).send(draft)
        if isinstance(outcome, Sent):
            return outcome
        raise outcome

    def _queue_of(self, stream: Stream, auth_ref: bytes | None) -> SendQueue:
        """Return the queue of a stream, whose calls share their round trips. A stream with given keys has its own
        queue."""
        key = (stream, auth_ref)
        queue = self._queues.get(key)
        if queue is None:
            idle = [other for other, queue in self._queues.items() if not queue.is_busy]
            for other in idle:
                del self._queues[other]
            queue = self._queues[key] = SendQueue(
                lambda drafts: self._send_drafts(stream, drafts, len(drafts), auth_ref)
            )
        return queue

    async def send_many(
        self,
        stream: Stream,
        bodies: Iterable[bytes | Draft],
        *,
        schema: str | bytes | None = None,
        capability: CapToken | None = None,
        auth_ref: bytes | None = None,
        batch: int = _BATCH,
        once: bool = False,
    ) -> list[Outcome]:
        """Send in batches; return one outcome per body, in order: a Sent, or the error of this message alone."""
        authority = await self._authority(stream, capability, auth_ref)
        return await self._send_drafts(stream, _drafts(bodies, schema), batch, authority, once=once)

    async def prepare(
        self,
        stream: Stream,
        bodies: Iterable[bytes | Draft],
        *,
        schema: str | bytes | None = None,
        capability: CapToken | None = None,
        auth_ref: bytes | None = None,
    ) -> list[Prepared]:
        """Seal without sending. Submit all results, in this order, before anything else to this stream."""
        drafts = _drafts(bodies, schema)
        if (refusal := next(filter(None, await self._refusals(stream, drafts)), None)) is not None:
            raise refusal
        authority = await self._authority(stream, capability, auth_ref)
        await self._advise(await self._labels.find(stream))  # first: reading the label makes its writer
        await self._follower.before_sealing(stream, self._session.epoch_now())
        target = await self._labels.find(stream)
        ready = await self._ready(stream, target, authority, len(drafts), whole=True)
        async with ready.writer.lock:
            return await asyncio.to_thread(ready.writer.prepare, drafts, ready.auth_ref, target.seal_to)

    async def speak(self, stream: Stream, *, capability: CapToken | None = None, by_name: bool = False) -> None:
        """Replace the client key if that is due, and introduce it in a stream, before messages are prepared.

        The first key of an identity is introduced only if the messages name the identity: `by_name`.
        """
        authority = await self._authority(stream, capability, None)
        target = await self._labels.find(stream)
        if by_name and target.stream_id is not None:
            self._rotation.named.add(target.stream_id)
        ready = await self._ready(stream, target, authority)
        if ready.first:
            await self._send_drafts(stream, [], 1, authority)

    async def submit_prepared(
        self, stream: Stream, prepared: Sequence[Prepared], *, batch: int = _BATCH
    ) -> list[Outcome]:
        """Send prepared messages. Safe to repeat: the hub recognises messages that have arrived."""
        outcomes: list[Outcome] = []
        for label in dict.fromkeys(message.label for message in prepared):
            messages = [message for message in prepared if message.label == label]
            writer = await self._labels.writer(self._labels.at(stream, self._labels.epoch_of(stream, label)))
            async with writer.lock:
                for message in messages:
                    await self.attachments.put_all(message)
                outcomes += await writer.send_prepared(list(batches(messages, batch)))
        return outcomes

    async def withdraw_prepared(self, stream: Stream) -> None:
        """Free the numbers of prepared messages that the hub has not accepted. Their bytes must never be sent again."""
        writer = await self._labels.writer(await self._labels.find(stream))
        async with writer.lock:
            writer.withdraw_prepared()

    async def recover(self, stream: Stream) -> list[Sent]:
        """Send pending messages of an earlier run; return those that have a receipt now."""
        return await self._rotation.recover(await self._labels.find(stream))

    async def recover_all(self) -> list[Sent]:
        """Call `recover` for every label of this hub on which an earlier run left messages pending."""
        answers: list[Sent] = []
        for label in self._labels.labels_with_pending():
            answers += await self.recover(f"label:{label.hex()}")
        return answers

    def pending(self) -> list[LabelState]:
        """Return the labels of this hub with messages without a receipt. They are sent again before new ones."""
        return self._labels.pending()

    async def send_pending(self, state: LabelState) -> None:
        """Send the pending messages of a label, also those of a retired client key; see `take_recovered`."""
        await self._rotation.settle(state)

    async def drop_pending(self, state: LabelState) -> tuple[int, int]:
        """Drop the pending messages of a label; return the number that the log turned out to have, and the number
        dropped."""
        return await self._labels.drop_pending(state)

    def take_recovered(self) -> list[Sent]:
        """Return messages of earlier calls that later calls delivered, each once."""
        return self._labels.take_recovered()

    async def resync(self, stream: Stream, *, epoch: int | None = None, from_scratch: bool = False) -> Resynced:
        """Read the log to its end and rebuild the state of the label, including the own numbers (spec §9)."""
        target = await self._labels.find(stream, epoch)
        if from_scratch:
            await self._labels.forget(target)
        writer = await self._labels.writer(target)
        async with writer.lock:
            return await writer.resync()

    async def cursor(
        self, stream: Stream, client_seq: int | None = None, *, epoch: int | None = None
    ) -> ClientCursorResponse | None:
        """Return the hub's statement about this client's numbers in a stream, and the place of message `client_seq`
        (D-162).

        No right to read is required. The answer is not signed: `receipt` proves it. None from a hub without this
        operation.
        """
        target = await self._labels.find(stream, epoch)
        return await self._session.client_cursor(self._rotation.identity.client_key.key, target.label, client_seq)

    async def token(self, stream_id: bytes) -> CapToken:
        """Return a token to write with, which the hub knows: held, derived from that of the principal, or issued.

        Raise TokenMissing or TokenExpired if there is none. Only for hubs that require one.
        """
        await self._rotation.in_time(stream_id)
        return await self.grants.token(stream_id)

    async def _authority(self, stream: Stream, capability: CapToken | None, auth_ref: bytes | None) -> bytes | None:
        if auth_ref is not None:
            return auth_ref
        return await self.grants.auth_ref(self._labels.keys(stream)[0].stream_id, capability)

    async def _send_drafts(
        self, stream: Stream, drafts: Sequence[Draft], batch: int, auth_ref: bytes | None, *, once: bool = False
    ) -> list[Outcome]:
        """Seal and send until each draft has an outcome; again where the hub's order or time differs from ours."""
        outcomes: list[Outcome | None] = [*await self._refusals(stream, drafts)]
        left = [number for number, refusal in enumerate(outcomes) if refusal is None]
        rounds, epoch_refused, introduces = 0, None, not drafts
        while left or introduces:
            epoch = self._session.epoch_now()
            if epoch == epoch_refused:
                epoch += 1  # our second and the hub's differ at the boundary (CLNT-07)
            await self._advise(self._labels.at(stream, epoch))
            await self._follower.before_sealing(stream, epoch)
            target = self._labels.at(stream, epoch)
            same = [drafts[number] for number in left] if once else ()
            ready = await self._ready(stream, target, auth_ref, min(batch, len(left)), same)
            for place, sent in ready.late.items():
                outcomes[left[place]] = sent
            left = [number for number in left if outcomes[number] is None]
            introduces, writer, first = False, ready.writer, ready.first
            room = min(batch, ready.room - len(first))
            turn = left[: _count_fitting([drafts[number] for number in left], room)]
            if not turn and not first:
                continue
            turn = await self._pace(target, turn)
            signed_by = self.client_id
            async with writer.lock:
                messages = [*first, *(drafts[number] for number in turn)]
                results = await writer.send(messages, ready.auth_ref, target.seal_to, once=once)
            if first and isinstance(results[0], Sent):
                await self._rotation.note_introduced(target)
            if not turn:
                continue
            self._follower.note_sent(stream, (outcome for outcome in results if outcome is not None))
            for number, outcome in zip(turn, results[len(first) :], strict=True):
                outcomes[number] = outcome
            if any(map(_ends_key, results)) and await self._rotation.replace_refused(target, signed_by):
                for number in turn:  # messages that are not in the log are sealed by the next key
                    outcomes[number] = outcomes[number] if isinstance(outcomes[number], Sent) else None
                left = [number for number in left if outcomes[number] is None]
                continue
            again = [number for number in turn if outcomes[number] is None]
            left = again + left[len(turn) :]
            rounds = rounds + 1 if len(again) == len(turn) else 0
            if again and writer.refusal is not None:
                epoch_refused = epoch if refusal_of(writer.refusal) is Refusal.EPOCH else None
                if rounds >= _ROUNDS:
                    outcomes[again[0]] = writer.refusal
                    left.pop(0)
                    rounds = 0
        await self._announce_device()
        return [outcome for outcome in outcomes if outcome is not None]

    async def _refusals(self, stream: Stream, drafts: Sequence[Draft]) -> list[LocalError | None]:
        """Return the refusals of the rules: for each draft the first one, or None."""
        refusals: list[LocalError | None] = [None] * len(drafts)
        if not self._rules:
            return refusals
        keys = (await self._labels.find(stream)).keys[0]
        for rule in self._rules:
            answers = await rule.check(self, keys, drafts)
            if answers is not None:
                refusals = [first or second for first, second in zip(refusals, answers, strict=True)]
        return refusals

    async def _advise(self, target: Target) -> LabelAdvice | None:
        """Request the advice about a label, once, before anything is sealed for it."""
        advice = self._labels.advice
        if self._advisor is None or not target.keys:
            return None
        if target.label not in advice:
            advice[target.label] = await self._advisor.advice(self, target.keys[0], target.label)
        return advice[target.label]

    async def _pace(self, target: Target, turn: list[int]) -> list[int]:
        """Wait until the advised rate allows it, and return the part of a turn that fits into one second."""
        advice = await self._advise(target)
        if advice is None or not advice.per_sec:
            return turn
        loop = asyncio.get_running_loop()
        begins = max(loop.time(), self._may_send_at.get(target.label, 0.0))
        turn = turn[: advice.per_sec]
        self._may_send_at[target.label] = begins + len(turn) / advice.per_sec
        await asyncio.sleep(begins - loop.time())
        return turn

    async def _ready(
        self,
        stream: Stream,
        target: Target,
        auth_ref: bytes | None,
        count: int = 1,
        once: Sequence[Draft] = (),
        *,
        whole: bool = False,
    ) -> Ready:
        follow = self._follower.of(stream) if target.keys else None
        control = None if follow is None else follow.control
        return await self._rotation.ready(target, auth_ref, count, control=control, once=once, whole=whole)

    async def _announce_device(self) -> None:
        """Write the record of a new client key into the stream of the principal, if it has keys there (D-96).

        Sent messages do not depend on it: if it cannot be written now, the next call tries again.
        """
        due = None if self._announcing else await self._rotation.device()
        if due is None:
            return
        self._announcing = True
        try:
            stream_id, draft = due
            gated, authority = self._session.status.capability_gating, None
            if gated:
                authority = (await self.token(stream_id)).auth_ref()
            outcomes = await self._send_drafts(stream_id, [draft], 1, authority)
            if isinstance(outcomes[0], Sent):
                await self._rotation.note_announced()
        except (HubRefused, NetworkError, LocalError) as exc:
            LOG.info("the record of the new client key was not written: %s", exc)
        finally:
            self._announcing = False

    # --- reading ---------------------------------------------------------------------------------------

    async def read(
        self,
        stream: Stream,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        since: int | None = None,
        until: int | None = None,
        epoch: int | None = None,
        with_proofs: bool = False,
        open: bool = True,
    ) -> AsyncGenerator[Entry, None]:
        """Yield every entry of a range, verified, in order; a stream that spans labels is merged (D-27).

        `from_seq` and `to_seq` count within one label; `since` and `until` are times of the hub, inclusive.
        """
        span = self._session.epoch_sec
        target = await self._labels.find(stream, epoch if epoch is not None or span else 0)
        follow = self._follower.of(target.keys[0]) if open and target.keys else None
        # Keys may have been handed over, announced or shredded after this range: two reads of one log must not differ.
        if follow is not None:
            await self._follower.sync(target.keys[0])
            target = self._labels.at(target.keys[0], target.epoch)

        def entries(of_epoch: int) -> AsyncGenerator[Entry, None]:
            at = target if of_epoch == target.epoch else self._labels.at(stream, of_epoch)
            return self._read_label(
                at, from_seq, to_seq, since, until, with_proofs=with_proofs, opened=open, follow=follow
            )

        if not span or epoch is not None or target.stream_id is None:
            source = entries(target.epoch)
        elif from_seq is not None or to_seq is not None:
            raise LocalError("numbers count within one label: name its epoch, or read by time")
        else:
            first = 0 if since is None else max(epoch_at(since, span) - self._session.window, 0)
            last = None if until is None else epoch_at(until, span) + self._session.window
            epochs = await self._session.epochs_of(target.stream_id, first)
            source = merge_labels(
                self._session, [number for number in epochs if last is None or number <= last], entries
            )
        async with contextlib.aclosing(source):
            async for entry in source:
                yield entry

    async def read_kept(
        self, stream: Stream, *, after: Mapping[bytes, int] | None = None
    ) -> AsyncGenerator[Entry | ErasedRange, None]:
        """Yield every entry that the hub still has, label by label, and the ranges that it has erased.

        `after` has positions by label; entries up to and including them are left out.
        """
        async with contextlib.aclosing(read_kept(self, stream, after=after)) as items:
            async for item in items:
                yield item

    async def to_arrow(self, stream: Stream, **options: Any) -> "pa.Table":
        """Return a range as an Arrow table; the options are those of `read`."""
        return frames.to_arrow([entry async for entry in self.read(stream, **options)])

    async def to_pandas(self, stream: Stream, **options: Any) -> "pd.DataFrame":
        """Return a range as a pandas frame; the options are those of `read`."""
        return frames.to_pandas([entry async for entry in self.read(stream, **options)])

    async def _read_label(
        self,
        target: Target,
        first: int | None,
        last: int | None,
        since: int | None,
        until: int | None,
        *,
        with_proofs: bool,
        opened: bool,
        follow: StreamFollow | None,
    ) -> AsyncGenerator[Entry, None]:
        reader = await self._labels.reader(target, opened=opened, with_proofs=with_proofs, follow=follow)
        if since is not None:
            first = max(first or 1, await seek(self._session, target.label, since))
        async with contextlib.aclosing(reader.entries(first or 1, last)) as entries:
            async for entry in entries:
                if until is not None and entry.ts > until:
                    return
                if since is None or entry.ts >= since:
                    yield entry
        await self._labels.saw(target, reader.view)

    async def follow(
        self, stream: Stream, *, from_seq: int | None = None, with_proofs: bool = False, open: bool = True
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries as they are written, forever; without `from_seq`, those written from now on."""
        target = await self._labels.find(stream)
        if from_seq is None:
            info = await self._session.label_info(target.label)
            from_seq = (info.last_stream_seq if info else 0) + 1
        follow = self._follower.of(target.keys[0]) if open and target.keys else None
        if follow is not None:
            await self._follower.sync(target.keys[0])
            target = self._labels.at(target.keys[0], target.epoch)

        async def open_label(epoch: int) -> LabelReader:
            at = target if epoch == target.epoch else self._labels.at(stream, epoch)
            return await self._labels.reader(at, opened=open, with_proofs=with_proofs, follow=follow)

        async with contextlib.aclosing(follow_labels(self._session, open_label, max(from_seq, 1))) as entries:
            async for entry in entries:
                yield entry


def _ends_key(outcome: Outcome | None) -> bool:
    """Return True for a refusal after which the client key may no longer sign."""
    return isinstance(outcome, HubRefused) and refusal_of(outcome) in KEY_ENDED


def _drafts(bodies: Iterable[bytes | Draft], schema: str | bytes | None) -> list[Draft]:
    wanted = None if schema is None else schema_id(schema)
    return [body if isinstance(body, Draft) else Draft(body=body, schema=wanted) for body in bodies]


def _count_fitting(drafts: Sequence[Draft], batch: int) -> int:
    """Return the number of these drafts that fit into one request."""
    room, count = MAX_BATCH_BYTES, 0
    for draft in drafts[: min(batch, MAX_BATCH_ITEMS)]:
        room -= len(draft.body) + 32 * 1024  # a header and padding at most
        if room < 0 and count:
            break
        count += 1
    return count
