"""Recording without an agent: the call takes lines or values and returns their receipts."""

import time
from collections.abc import Iterable, Sequence

from veen.api.token_authority import TokenAuthority
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.send.writing import Outcome
from veen.products.recorder.adapters.lines import record_of_line
from veen.products.recorder.events import (
    MAX_PAYLOAD,
    UNBOUNDED,
    Selectors,
    SourceRecord,
    draft_of,
    fit_record,
    to_bytes,
)
from veen.products.recorder.rules import RecorderRules, find_draft_fault


def line_records(
    lines: Iterable[bytes], selectors: Selectors, *, origin: str, now: int | None = None
) -> list[SourceRecord]:
    """Return one record for each line that is not empty; the line number is its position."""
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
    """Send records to one stream; return one outcome for each, in order: a Sent with its receipt, or an error.

    Where the configuration of the recorder can be read, a record that it forbids is refused (SDR.MAPPING,
    SDR.OVERSIZE), and the others are sent. Elsewhere a payload above `max_payload` is recorded by its beginning.
    """
    client = authority.client
    configuration = await RecorderRules().configuration(client)
    if configuration is not None and configuration.max_payload:
        max_payload = UNBOUNDED  # refused, so that nobody takes the beginning of an event for the event
    capability = await authority.capability(keys.stream_id)
    await client.speak(keys, capability=capability)  # events name the client key, so it is replaced before
    outcomes: list[Outcome | None] = []
    drafts = []
    for record in records:
        within = fit_record(record, adapter=adapter, source=source, max_payload=max_payload)
        event = draft_of(to_bytes(within), client.client_id)
        draft = Draft(body=event.body, schema=event.schema)
        fault = None if configuration is None else find_draft_fault(configuration, keys, draft)
        outcomes.append(fault)
        if fault is None:
            drafts.append(draft)
    sent: list[Outcome] = []
    if drafts:
        sent = await client.send_many(keys, drafts, capability=capability)
    rest = iter(sent)
    return [next(rest) if outcome is None else outcome for outcome in outcomes]
