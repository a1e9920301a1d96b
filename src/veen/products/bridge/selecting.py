"""Derived export: an identity that is neither bridge nor log copies selected events to an export stream (D-132).

A copy has the schema and the identical bytes of the body, and the original as parent_id. Exactly once without reading
back: before a batch is sent, the positions of its events and the hub's cursor of the selector's client key are stored.
After a crash the cursor tells how many of them the hub has. If the state is lost, the copies are read back once. The
same happens if an earlier version wrote the state: it could leave out events where several streams went to one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import NoReaderKey
from veen.client.home import PrivateFs
from veen.client.read.reading import Entry
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.objects.captoken import CapToken
from veen.core.sealing.ciphertext import Opened
from veen.products.bridge.errors import BridgeError
from veen.products.bridge.exporting import Withhold

_BATCH: Final = 64
_FILE: Final = "selected.json"
_FORM: Final = 2


@dataclass(frozen=True, slots=True)
class Selected:
    """The events that one run copied; an earlier version had left out `left_out` of them."""

    copied: int
    left_out: int = 0


class Selector:
    """Copies from one stream to another at one hub. Owned by one task.

    State on disk, per hub, client key, source and target: the last entry read of the source (`seq`), the number of
    copies (`copies`), and the batch in progress. It may lag behind the hub by that batch, never lead.
    """

    def __init__(self, client: Client, directory: Path, withhold: Withhold, capability: CapToken | None = None) -> None:
        self._client, self._withhold, self._capability = client, withhold, capability
        self._fs = PrivateFs(directory)
        self._path = directory / _FILE

    async def copy(self, source: str, target: str, reader: Client | None = None) -> int:
        """Copy everything new; return the number of copies. For streams of hubs without epochs."""
        return (await self.select(source, target, reader)).copied

    async def select(self, source: str, target: str, reader: Client | None = None) -> Selected:
        """Copy everything new. `reader` reads the target if the selector's own keys cannot."""
        file = self._load()
        await self._client.recover(target)
        await self._settle(file)
        cursor = await self._cursor(target)
        prefix = [self._client.hub_id.hex(), self._client.client_id.hex(), target]
        key = " ".join((*prefix, source))
        if file["states"].get(key, {}).get("is_open"):
            del file["states"][key]  # a run that read back was cut off: what is there is read back again
        earlier = file["states"].get(key)
        accounted = sum(
            state["copies"] for name, state in file["states"].items() if name.startswith(" ".join(prefix) + " ")
        )
        present: set[bytes] = set()
        state = earlier or {"seq": 0, "copies": 0}
        if earlier is None and cursor > accounted:
            present = await self._read_back(target, reader or self._client)
            state["is_open"] = True
        file["states"][key] = state
        run = _Run(self, file, key, target, cursor)
        last, left_out = 0, 0
        waiting: list[int] = []  # chosen events that are not in the target, before one that is
        async for entry in self._client.read(source, from_seq=state["seq"] + 1, epoch=0):
            last = entry.seq
            if not self._is_chosen(entry):
                continue
            if entry.msg_id in present:
                state["copies"] += 1
                left_out += len(waiting)
                waiting.clear()
                continue
            if present:
                waiting.append(entry.seq)
            await run.add(entry)
        await run.flush()
        state["seq"] = max(state["seq"], last)
        state.pop("is_open", None)
        self._save(file)
        return Selected(run.copied, left_out)

    def _is_chosen(self, entry: Entry) -> bool:
        if entry.event is None:
            return False
        return self._withhold(entry, Opened(entry.event.hdr, entry.event.body, ())) is None

    async def _settle(self, file: dict[str, Any]) -> None:
        """Find the number of events of the interrupted batch that the hub has."""
        pending = file["pending"]
        if pending is None:
            return
        if pending["client"] != self._client.client_id.hex() or pending["hub"] != self._client.hub_id.hex():
            raise BridgeError(
                f"{self._path}: another client key was copying to {pending['target']}. Run the export once more with it"
            )
        await self._client.recover(pending["target"])
        done = await self._cursor(pending["target"]) - pending["before"]
        if not 0 <= done <= len(pending["seqs"]):
            raise BridgeError(f"something else writes to {pending['target']} under the selector's key")
        state = file["states"][pending["key"]]
        if done:
            state["seq"] = pending["seqs"][done - 1]
        state["copies"] += done
        file["pending"] = None
        self._save(file)

    async def _cursor(self, target: str) -> int:
        cursor = await self._client.cursor(target, epoch=0)
        if cursor is None:
            raise BridgeError("the hub does not tell a client its own cursor (/tooling/client_cursor): update the hub")
        return cursor.last_client_seq

    async def _read_back(self, target: str, reader: Client) -> set[bytes]:
        """Return the originals of all copies that the selector's keys have made."""
        originals = set()
        unread = BridgeError(
            f"the earlier copies on {target} are unknown, and no key here can read them."
            " Export with an identity that can read the stream"
        )
        try:
            async for entry in reader.read(target, epoch=0):
                if entry.msg.client_id not in self._client.client_ids:
                    continue
                if entry.event is None:
                    raise unread
                if entry.event.hdr.parent_id is not None:
                    originals.add(entry.event.hdr.parent_id)
        except NoReaderKey as exc:
            raise unread from exc
        return originals

    def _load(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"form": _FORM, "states": {}, "pending": None}
        try:
            file: Any = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return empty
        except ValueError as exc:
            raise BridgeError(f"{self._path} is damaged: {exc}. Remove it: the selector then reads all again") from exc
        # An earlier form counted copies by source and target alone: what it says is read back instead.
        return file if isinstance(file, dict) and file.get("form") == _FORM else empty

    def _save(self, file: dict[str, Any]) -> None:
        self._fs.replace(_FILE, json.dumps(file).encode())

    async def send(self, target: str, drafts: list[Draft]) -> None:
        """Send a complete batch, or raise the hub's error."""
        for outcome in await self._client.send_many(target, drafts, capability=self._capability, batch=_BATCH):
            if not isinstance(outcome, Sent):
                raise outcome

    def store_batch(self, file: dict[str, Any], key: str, target: str, cursor: int, seqs: list[int]) -> None:
        """Store the batch that is about to be sent."""
        file["pending"] = {
            "key": key,
            "hub": self._client.hub_id.hex(),
            "client": self._client.client_id.hex(),
            "target": target,
            "before": cursor,
            "seqs": seqs,
        }
        self._save(file)


class _Run:
    """The batches of one run."""

    def __init__(self, selector: Selector, file: dict[str, Any], key: str, target: str, cursor: int) -> None:
        self._selector, self._file, self._key, self._target, self._cursor = selector, file, key, target, cursor
        self._drafts: list[Draft] = []
        self._seqs: list[int] = []
        self.copied = 0

    async def add(self, entry: Entry) -> None:
        event = entry.event
        assert event is not None  # noqa: S101 - it was chosen by its body
        self._drafts.append(
            Draft(body=event.body, schema=event.hdr.schema, parent=entry.msg_id, expires_at=event.hdr.expires_at)
        )
        self._seqs.append(entry.seq)
        if len(self._drafts) == _BATCH:
            await self.flush()

    async def flush(self) -> None:
        if not self._drafts:
            return
        self._selector.store_batch(self._file, self._key, self._target, self._cursor, list(self._seqs))
        await self._selector.send(self._target, self._drafts)
        state = self._file["states"][self._key]
        state["seq"], state["copies"] = self._seqs[-1], state["copies"] + len(self._drafts)
        self._file["pending"] = None
        self._cursor += len(self._drafts)
        self.copied += len(self._drafts)
        self._drafts.clear()
        self._seqs.clear()
