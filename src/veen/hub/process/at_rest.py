"""A stopped hub's data directory, opened for a change that must be journaled.

A journaled record carries a time that can never be taken back, so the clock is checked as at a start (D-167).
"""

import contextlib
from collections.abc import Iterator

from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.control import ControlRecord, RequestDone
from veen.core.wire import Wire
from veen.hub.process.config import Engine
from veen.hub.process.startup import Sealing, check_index, finish_rotations
from veen.hub.sequencer.clock import HubClock, read_clock
from veen.io.local import Fs
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys
from veen.storage.store import Group, Store


class AtRest:
    """The store of a stopped hub and the keys to sign for it."""

    def __init__(self, store: Store, sealing: Sealing, hub_ts: int) -> None:
        self.store, self.sealing, self.hub_ts = store, sealing, hub_ts

    @property
    def keys(self) -> HubKeys:
        return self.sealing.held

    def journal(self, body: Wire, request_id: bytes | None = None) -> None:
        """Append a control record, and one that names the request if it has an id. Both are durable and applied on
        return."""
        group = Group()
        record = self._stage(body, group)
        if request_id is not None:
            self._stage(RequestDone(request_id=request_id, record=record.seq), group)
        self.store.journal.write(group.payload())
        self.store.apply(group)

    def _stage(self, body: Wire, group: Group) -> ControlRecord:
        key = self.sealing.signing_key_at(self.hub_ts)
        record = ControlRecord.issue(key, self.store.state.control, body, hub_ts=self.hub_ts)
        self.store.stage_control(record)
        group.add_control(record)
        return record


@contextlib.contextmanager
def at_rest(fs: Fs, now: int, *, accept_clock: bool = False) -> Iterator[AtRest]:
    """Open the directory; at the end its journal is empty again. Raise LockedError if the hub runs.

    Raise ClockStepError if `now` is too far ahead of the log, unless `accept_clock`. Nothing was changed then.
    """
    with fs.lock():
        keys = identities.load(fs, now=now)
        check_index(fs)
        sealing = Sealing(keys)
        store = Store.open(fs, DEFAULT_LIMITS, sealing.seal)
        try:
            clock = HubClock(lambda: now, max_step=Engine().max_clock_step)
            clock.begin(store.state.hub_ts, read_clock(fs), accept=accept_clock)
            sealing.replace(finish_rotations(fs, keys, store))
            yield AtRest(store, sealing, max(now, store.state.hub_ts))  # never before a time in the log (D-28)
            store.close()
        except BaseException:
            store.abandon()
            raise
