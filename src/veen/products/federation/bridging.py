"""A bridge between two hubs that are both online: it copies streams repeatedly (001 spec-4 §6, K8S-11, K8S-12).

Each pass is `mirroring.copy_stream` for every stream of the keyring that a selector names. The target's log is the
state: after any crash and any number of restarts, an event of the source is in the target once, in the order of the
source, under the keys of the stream. A source that contradicts verified history ends the bridge.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from veen.client.client import Client
from veen.client.errors import ClientError, Divergence, HubRefused, UnknownStream
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.transport.calls import is_not_found
from veen.core.errors import StatedError
from veen.core.objects.captoken import CapToken
from veen.products.federation.copy_index import CopyIndex
from veen.products.federation.mirroring import copy_stream


class NothingToBridge(StatedError):
    """No stream of the keyring matches the selectors of a bridge."""

    hint = (
        "Add the read keys of the streams to the bridge's keystore: `veen id keyring add`; selectors are as in core/*."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgedStream:
    """Result of one pass for one stream; `error` if it could not be copied and will be retried."""

    stream: str
    sent: int = 0
    existed: int = 0
    gaps: int = 0
    error: ClientError | None = None


def select_streams(keyring: Keyring, selectors: Sequence[str]) -> tuple[StreamKeys, ...]:
    """Return the streams that selectors such as core/* name, each once, by name. Refuse a selector without a match."""
    chosen: dict[bytes, StreamKeys] = {}
    for selector in selectors:
        matching = keyring.find_matching(selector)
        if not matching:
            raise NothingToBridge(f"no stream of the keyring matches {selector!r}")
        chosen |= {keys.stream_id: keys for keys in matching}
    readable = tuple(sorted(chosen.values(), key=lambda keys: str(keys.name)))
    for keys in readable:
        if keys.reader_sk is None:
            raise NothingToBridge(f"the keystore has no read key of {keys.name}")
    return readable


class HubBridge:
    """Copies streams from one connected client to another. Its memory only saves requests."""

    def __init__(
        self,
        source: Client,
        target: Client,
        streams: Sequence[StreamKeys],
        tokens: Sequence[CapToken] = (),
        *,
        now: Callable[[], int],
        bridges: Collection[bytes] = (),
        open_index: Callable[[str], CopyIndex] = lambda stream: CopyIndex(),
    ) -> None:
        """Set up the bridge. `open_index` opens the index that an earlier bridge left for a stream, named in hex."""
        self._source, self._target, self._streams, self._now = source, target, streams, now
        self._tokens = {
            stream_id: token
            for token in tokens
            if token.subject_pk == target.client_id
            for stream_id in token.allow.stream_ids
        }
        self.is_stale = False  # the target is no longer the hub of this connection: connect again
        self._copied: dict[bytes, Mapping[bytes, int]] = {}  # stream -> how long its logs were when all was copied
        self._indexes: dict[bytes, CopyIndex] = {}  # stream -> how far its copy is
        self._open_index = open_index
        self._bridges = frozenset(bridges)

    async def run_once(self) -> list[BridgedStream]:
        """Copy the new events of every stream. Raise Divergence if the source contradicts itself."""
        try:
            status = await self._target.status()
        except ClientError as exc:
            return [BridgedStream(stream=str(keys.name), error=exc) for keys in self._streams]
        if status.hub_pk not in {key.hub_pk for key in self._target.pin.keys}:
            self.is_stale = True  # a disposable hub was replaced, or has its next key
            return []
        return [await self._copy(keys) for keys in self._streams]

    async def _copy(self, keys: StreamKeys) -> BridgedStream:
        stream = str(keys.name)
        try:
            sizes = await self._sizes(stream)
            if self._copied.get(keys.stream_id) == sizes:
                return BridgedStream(stream=stream)
            if keys.stream_id not in self._copied:
                await self._target.recover(stream)
                await self._target.resync(stream)  # the stored numbers of the bridge may be lost
            token = self._tokens.get(keys.stream_id)
            if token is not None:
                await self._target.authorize(token)
            report = await copy_stream(
                self._source,
                self._target,
                stream,
                stream,
                now=self._now,
                capability=token,
                bridges=self._bridges,
                index=self._index(keys.stream_id),
            )
        except (Divergence, UnknownStream):
            raise
        except ClientError as exc:
            return BridgedStream(stream=stream, error=exc)
        self._copied[keys.stream_id] = sizes
        return BridgedStream(stream=stream, sent=report.sent, existed=report.existed, gaps=len(report.gaps))

    def _index(self, stream_id: bytes) -> CopyIndex:
        if stream_id not in self._indexes:
            self._indexes[stream_id] = self._open_index(stream_id.hex())
        return self._indexes[stream_id]

    async def _sizes(self, stream: str) -> dict[bytes, int]:
        """Return the number of entries of each log of a stream at the source."""
        sizes = {}
        for label, epoch in (await self._source.labels_of(stream)).items():
            try:
                sizes[label] = (await self._source.checkpoint(stream, epoch=epoch)).upto_seq
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
        return sizes
