"""Reading the entries that a hub still has, and the ranges that retention has erased.

`Client.read` ends with an error at an erased payload. Callers that must continue after it, such as a mirror, the policy
agent or the query service, use `read_kept` and report the ranges.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veen.client.errors import HubRefused
from veen.client.read.reading import Entry
from veen.client.transport.calls import is_not_found

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.keyring import Stream


@dataclass(frozen=True, slots=True)
class ErasedRange:
    """Entries of one label whose payloads the hub has erased."""

    label: bytes
    first: int
    last: int


async def read_kept(
    client: "Client", stream: "Stream", *, after: Mapping[bytes, int] | None = None
) -> AsyncGenerator[Entry | ErasedRange, None]:
    """Yield every entry of a stream that can be read, label by label in the order of epochs, and erased ranges.

    `after` has positions by label; entries up to and including them are left out.
    """
    for epoch, label in sorted((epoch, label) for label, epoch in (await client.labels_of(stream)).items()):
        async for item in read_kept_label(client, stream, epoch, label, (after or {}).get(label, 0) + 1):
            yield item


async def read_kept_label(
    client: "Client", stream: "Stream", epoch: int, label: bytes, first: int
) -> AsyncIterator[Entry | ErasedRange]:
    """Yield the entries of one label from `first` on that can be read, and erased ranges."""
    seq = first
    while True:
        try:
            async for entry in client.read(stream, epoch=epoch, from_seq=seq):
                yield entry
                seq = entry.seq + 1
            return
        except HubRefused as exc:
            if not is_pruned(exc):
                if is_not_found(exc):
                    return  # the label has no entries, or none from here on
                raise
        behind = await _behind_erased(client, stream, epoch, seq)
        yield ErasedRange(label, seq, behind - 1)
        seq = behind


def is_pruned(error: HubRefused) -> bool:
    """Return True if the hub refuses because it has erased the requested entries."""
    return is_not_found(error) and error.detail.get("reason") == "pruned"


async def _behind_erased(client: "Client", stream: "Stream", epoch: int, erased: int) -> int:
    """Return the first readable position after an erased one, in O(log n) requests: runs are erased."""
    size = (await client.checkpoint(stream, epoch=epoch)).upto_seq
    step, low = 1, erased  # `low` is erased
    while low + step <= size and await _is_erased(client, stream, epoch, low + step):
        low, step = low + step, step * 2
    high = min(low + step, size + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if middle <= size and await _is_erased(client, stream, epoch, middle):
            low = middle
        else:
            high = middle
    return high


async def _is_erased(client: "Client", stream: "Stream", epoch: int, seq: int) -> bool:
    try:
        async for _ in client.read(stream, epoch=epoch, from_seq=seq, to_seq=seq, open=False):
            return False
    except HubRefused as exc:
        if not is_pruned(exc):
            raise
        return True
    return False
