"""Submits: bytes out, receipts in, single or in batches, with proof of work if required (spec §10.4.1, D-56, D-59).

The result is one answer per message, in order: a RECEIPT as the hub sent it, or its refusal. The writer, which knows
the messages, checks the receipts.
"""

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from veen.client.errors import BadAnswer, HubRefused, LocalError, NetworkError
from veen.client.send.sealing import Prepared
from veen.client.session import HubSession
from veen.client.transport.calls import NO_HEADERS, POW_HEADER, error_of, is_transient, place_of, refusal_of
from veen.client.transport.calls import read as read_answer
from veen.core import cbor
from veen.core.entry import RECEIPT_HEAD
from veen.core.errors import FormatError, Refusal
from veen.core.objects.envelopes import SUBMIT_PREFIX, ErrorEnvelope, SubmitResponse
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import MAX_BATCH_ITEMS
from veen.core.pow import solve

_SUBMIT, _BATCH = "v1/submit", "tooling/submit_batch"
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024  # greatest request that a hub accepts
_NONCE_BITS: Final = 48
MAX_POW_BITS: Final = 24  # more than a minute of one core; the client refuses to pay more

Told = Receipt | HubRefused


def batches(messages: Iterable[Prepared], most: int) -> Iterator[list[Prepared]]:
    """Yield messages in order, as many in one request as the caller and a hub allow."""
    group: list[Prepared] = []
    size = 0
    for message in messages:
        if group and (len(group) >= min(most, MAX_BATCH_ITEMS) or size + len(message.raw) > MAX_BATCH_BYTES):
            yield group
            group, size = [], 0
        group.append(message)
        size += len(message.raw)
    if group:
        yield group


class Delivered:
    """The answers to some messages. `unsure`: an attempt got no answer, so a refusal does not prove absence."""

    __slots__ = ("answers", "unsure")

    def __init__(self, count: int) -> None:
        self.answers: list[Told | None] = [None] * count
        self.unsure = False


class Submitter:
    """Delivery of messages: the same bytes are sent until the hub has decided about them."""

    def __init__(self, session: HubSession) -> None:
        self._session = session

    async def deliver(self, messages: Sequence[Prepared], *, batched: bool) -> Delivered:
        """Return one answer per message. Raise NetworkError if the hub cannot be reached in time: the outcome is
        then unknown."""
        done = Delivered(len(messages))
        start = 0

        async def attempt() -> None:
            nonlocal start
            try:
                answers = await self._submit(messages[start:], batched=batched)
            except NetworkError:
                done.unsure = True
                raise
            for number, answer in enumerate(answers, start=start):
                if isinstance(answer, HubRefused) and is_transient(answer) and place_of(answer) is None:
                    start = number  # later messages were refused only because this one is missing
                    raise answer
                done.answers[number] = answer

        await self._session.calls.repeat(attempt)
        return done

    async def _submit(self, messages: Sequence[Prepared], *, batched: bool) -> list[Told]:
        body = b"".join([message.raw for message in messages]) if batched else SUBMIT_PREFIX + messages[0].raw
        answers = await self._post(body, len(messages), batched=batched)
        if any(isinstance(answer, HubRefused) and _wants_pow(answer) for answer in answers):
            difficulty = self._session.status.pow_difficulty
            if (await self._session.refresh_status()).pow_difficulty != difficulty:
                answers = await self._post(body, len(messages), batched=batched)
        return answers

    async def _post(self, body: bytes, count: int, *, batched: bool) -> list[Told]:
        operation = _BATCH if batched else _SUBMIT
        headers = await self._pay(body, count)
        answer = await self._session.calls.transport.call(operation, body, headers=headers)
        if not answer.ok:
            fault = error_of(operation, answer)
            if isinstance(fault, BadAnswer):
                raise fault
            return [fault] * count if batched and not is_transient(fault) else [fault]
        if not batched:
            return [read_answer(operation, answer.body, SubmitResponse).receipt]
        answers = _read_batch(answer.body)
        if len(answers) != count:
            raise BadAnswer(f"{operation}: {len(answers)} answers to {count} messages")
        return answers

    async def _pay(self, body: bytes, count: int) -> Mapping[str, str]:
        """Return the header with proof of work, if the hub requires it: a batch costs as much as its messages."""
        asked = self._session.status.pow_difficulty
        if not asked:
            return NO_HEADERS
        difficulty = asked + max(count - 1, 0).bit_length()
        if difficulty > MAX_POW_BITS:
            raise LocalError(
                f"the hub requires a proof of work of {difficulty} bits; this client pays at most {MAX_POW_BITS}"
            )
        # A new cookie for each attempt: the hub may have accepted the last one although its answer was lost.
        cookie = await asyncio.to_thread(solve, body, difficulty, secrets.randbits(_NONCE_BITS))
        return {POW_HEADER: cookie.to_bytes().hex()}


def _wants_pow(answer: HubRefused) -> bool:
    return refusal_of(answer) is Refusal.PREFILTER_REJECT and answer.detail.get("field") == POW_HEADER


def _read_batch(body: bytes) -> list[Told]:
    """Decode the answers of a batch. Receipts have a fixed layout, so they are cut without reading every item."""
    answers: list[Told] = []
    pos = 0
    try:
        while pos < len(body):
            if body[pos : pos + len(RECEIPT_HEAD)] == RECEIPT_HEAD:
                end = _receipt_end(body, pos)
                answers.append(Receipt.from_bytes(body[pos:end]))
            else:
                end = cbor.item_end(body, pos)
                answers.append(HubRefused.from_envelope(ErrorEnvelope.from_bytes(body[pos:end])))
            pos = end
    except FormatError as exc:
        raise BadAnswer(f"{_BATCH}: neither receipts nor errors: {exc}") from exc
    return answers


def _receipt_end(data: bytes, pos: int) -> int:
    try:
        _, leaf = cbor.uint_at(data, pos + 36)
        _, sig = cbor.uint_at(data, leaf + 68)
    except (IndexError, ValueError):
        return cbor.item_end(data, pos)  # not the layout: the general reader names the fault
    return sig + 66
