"""Events without an agent: lines or values in, receipts out, in the same call."""

import time
from collections.abc import Iterable, Sequence

from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.send.writing import Outcome
from veen.products.recorder.adapters.lines import record_of_line
from veen.products.recorder.authority import TokenAuthority
from veen.products.recorder.events import MAX_PAYLOAD, SourceRecord, draft_of, shaped, to_bytes
from veen.products.recorder.fields import Selectors


def line_records(
    lines: Iterable[bytes], selectors: Selectors, *, origin: str, now: int | None = None
) -> list[SourceRecord]:
    """One record per line that is not empty; its number is its position."""
    moment = int(time.time()) if now is None else now
    records = []
    for number, line in enumerate(lines, start=1):
        data = line.rstrip(b"\r\n")
        if not data:
            continue
        records.append(record_of_line(data, selectors, origin=origin, position=str(number), now=moment))
    return records


async def emit(
    authority: TokenAuthority,
    keys: StreamKeys,
    records: Sequence[SourceRecord],
    *,
    adapter: str = "emit",
    source: str = "emit",
    max_payload: int = MAX_PAYLOAD,
) -> list[Outcome]:
    """Send records to one stream: one outcome each, in order, a Sent with its receipt or what concerns that record."""
    capability = await authority.capability(keys.stream_id)
    await authority.client.speak(keys, capability=capability)  # events name the client key, so it is replaced before
    drafts = []
    for record in records:
        within = shaped(record, adapter=adapter, source=source, max_payload=max_payload)
        draft = draft_of(to_bytes(within), authority.client.client_id)
        drafts.append(Draft(body=draft.body, schema=draft.schema))
    return await authority.client.send_many(keys, drafts, capability=capability)
