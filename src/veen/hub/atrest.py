"""A data directory whose hub does not run, open for a change that must be journaled."""

import contextlib
from collections.abc import Iterator

from veen.core.control import ControlRecord
from veen.core.limits import DEFAULT_LIMITS
from veen.core.wire import Wire
from veen.hub.opening import Sealing, check_index, finish_rotations
from veen.storage import identity as identities
from veen.storage.fs import Fs
from veen.storage.identity import HubKeys
from veen.storage.store import Group, Store

__all__ = ["AtRest", "at_rest"]


class AtRest:
    """The store of a stopped hub and the keys to sign for it."""

    def __init__(self, store: Store, sealing: Sealing, now: int) -> None:
        self.store, self.sealing = store, sealing
        self.hub_ts = max(now, store.state.hub_ts)  # never before what was given out already (D-28)

    @property
    def keys(self) -> HubKeys:
        return self.sealing.held

    def journal(self, body: Wire) -> None:
        """Append a control record; durable and applied when it returns."""
        key = self.sealing.signing_key_at(self.hub_ts)
        record = ControlRecord.issue(key, self.store.state.control, body, hub_ts=self.hub_ts)
        group = Group()
        self.store.stage_control(record)
        group.add_control(record)
        self.store.journal.write(group.payload())
        self.store.apply(group)


@contextlib.contextmanager
def at_rest(fs: Fs, now: int) -> Iterator[AtRest]:
    """Open the directory; at the end its journal is empty again. LockedError if the hub runs."""
    with fs.lock():
        keys = identities.load(fs, now=now)
        check_index(fs)
        sealing = Sealing(keys)
        store = Store.open(fs, DEFAULT_LIMITS, sealing.seal)
        try:
            sealing.replace(finish_rotations(fs, keys, store))
            yield AtRest(store, sealing, now)
            store.close()
        except BaseException:
            store.abandon()
            raise
