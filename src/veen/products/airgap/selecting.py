"""Derived export: an identity that is neither bridge nor log copies chosen events to an export stream (D-132).

A copy has the schema and the very bytes of the body, and the original as parent_id. Exactly once without reading back:
which events are chosen is a function of the source stream, and the selector's client key writes nothing else, so the
hub's cursor of that key says how many of the chosen ones are copied.
"""

import json
from pathlib import Path
from typing import Any, Final

from veen.client.client import Client
from veen.client.home import PrivateFs
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.objects.captoken import CapToken
from veen.core.sealing.ciphertext import Opened
from veen.products.airgap.errors import BridgeError
from veen.products.airgap.exporting import Withhold

_BATCH: Final = 64
_FILE: Final = "selected.json"


class Selector:
    """Copies from one stream to another at one hub. Owned by one task.

    State on disk: per pair of streams, how far the source was read (`seq`) and how many copies were count by then
    (`copies`); it may lag behind the hub, never lead.
    """

    def __init__(self, client: Client, directory: Path, withhold: Withhold, capability: CapToken | None = None) -> None:
        self._client, self._withhold, self._capability = client, withhold, capability
        self._fs = PrivateFs(directory)
        self._path = directory / _FILE

    async def copy(self, source: str, target: str) -> int:
        """Copy what is new; how many copies were count now. Streams of hubs whose labels do not change."""
        key = f"{source} {target}"
        states = self._load()
        state = states.get(key, {"seq": 0, "copies": 0})
        await self._client.recover(target)
        cursor = await self._client.cursor(target, epoch=0)
        if cursor is None:
            raise BridgeError("the hub does not tell a client its own cursor (/tooling/client_cursor): update the hub")
        ahead = cursor.last_client_seq - state["copies"]  # chosen events behind `seq` that are copied already
        drafts: list[Draft] = []
        count, seq = 0, state["seq"]

        async def flush() -> None:
            nonlocal count
            for outcome in await self._client.send_many(target, drafts, capability=self._capability, batch=_BATCH):
                if not isinstance(outcome, Sent):
                    raise outcome
            count += len(drafts)
            drafts.clear()

        chosen = state["copies"]
        async for entry in self._client.read(source, from_seq=state["seq"] + 1, epoch=0):
            seq = entry.seq
            if entry.event is None:
                continue
            opened = Opened(entry.event.hdr, entry.event.body, ())
            if self._withhold(entry, opened) is not None:
                continue
            chosen += 1
            if ahead > 0:
                ahead -= 1
                continue
            hdr = entry.event.hdr
            drafts.append(
                Draft(body=entry.event.body, schema=hdr.schema, parent=entry.msg_id, expires_at=hdr.expires_at)
            )
            if len(drafts) == _BATCH:
                await flush()
        await flush()
        self._fs.replace(_FILE, json.dumps({**states, key: {"seq": seq, "copies": chosen}}).encode())
        return count

    def _load(self) -> dict[str, Any]:
        try:
            states: dict[str, Any] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as exc:
            raise BridgeError(f"{self._path} is damaged: {exc}. Remove it: the selector then reads all again") from exc
        return states
