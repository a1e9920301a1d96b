"""Checkpoints as rows: those that seals left in a directory, or the current one of each label from a hub."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from veen.client.errors import BadAnswer
from veen.client.transport.calls import Calls, sequence
from veen.client.transport.hubapi import MAX_LABELS
from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.tooling import MAX_LISTED, CheckpointRangeRequest
from veen.io.places import open_fs
from veen.lake.log import columns
from veen.lake.log.columns import Column
from veen.lake.log.options import Options
from veen.lake.log.remote import HubLink
from veen.storage.scan import inventory, read_file

_RANGE: Final = "tooling/checkpoint_range"
_FILES_PER_TASK: Final = 4096

Row = dict[str, Any]


class CheckpointReader(DataSourceReader):
    """Reader of checkpoints, one row each; an invalid one is a row that says so."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._path, self._hub, self._labels = options.path, options.hub, options.selection.labels
        self._wanted = tuple(wanted)

    def partitions(self) -> Sequence[InputPartition]:
        if self._path is None:
            return [InputPartition(())]  # a hub tells all of them in a few answers
        files = inventory(open_fs(self._path))
        labels = sorted(label for label in files if self._labels is None or label in self._labels)
        paths = [file.path for label in labels for file in files[label] if file.kind == "checkpoint"]
        return [InputPartition(tuple(paths[at : at + _FILES_PER_TASK])) for at in range(0, len(paths), _FILES_PER_TASK)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._hub is not None:
            with HubLink(self._hub) as link:
                rows = [_row(self._hub.url, item) for item in link.run(_fetch_latest)]
            rows = [row for row in rows if self._labels is None or row.get("label") in {None, *self._labels}]
        else:
            assert self._path is not None  # noqa: S101 - there is exactly one of them
            rows = _read_stored(
                self._path, partition.value or ()
            )  # None: PySpark makes one if a plan has no partitions
        arrays = {
            column.name: pa.array([row.get(column.name) for row in rows], column.arrow) for column in self._wanted
        }
        yield pa.record_batch(arrays, schema=columns.arrow_schema(self._wanted))


def _read_stored(uri: str, paths: Sequence[str]) -> list[Row]:
    fs = open_fs(uri)
    rows = []
    for path in paths:
        try:
            rows.append(_row(path, read_file(fs, path)))
        except OSError as exc:
            rows.append({"path": path, "ok": False, "reason": str(exc)})
    return rows


async def _fetch_latest(calls: Calls) -> list[bytes]:
    """Return the latest checkpoint of every label, by (epoch, label); continue behind a full page (D-65)."""
    checkpoints: list[bytes] = []
    epoch_min, after = 0, None
    while True:
        request = CheckpointRangeRequest(epoch_min=epoch_min, epoch_max=cbor.U64_MAX, after=after)
        items = sequence(_RANGE, (await calls.send(_RANGE, request.to_bytes())).body)
        checkpoints += items
        if len(checkpoints) > MAX_LABELS:
            raise BadAnswer(f"{_RANGE}: checkpoints of more labels than any hub has")
        if len(items) < MAX_LISTED:
            return checkpoints
        try:
            last = Checkpoint.from_bytes(items[-1])
        except FormatError:
            return checkpoints  # where to go on cannot be told; its row says why
        if (last.epoch, last.label_curr) <= (epoch_min, after or b""):
            return checkpoints  # a hub that turns in circles
        epoch_min, after = last.epoch, last.label_curr


def _row(path: str, data: bytes) -> Row:
    try:
        checkpoint = Checkpoint.from_bytes(data)
    except FormatError as exc:
        return {"path": path, "ok": False, "reason": str(exc)}
    return {
        "label": checkpoint.label_curr,
        "label_prev": checkpoint.label_prev,
        "epoch": checkpoint.epoch,
        "upto_seq": checkpoint.upto_seq,
        "mmr_root": checkpoint.mmr_root,
        "hub_sig": checkpoint.hub_sig,
        "witness_sigs": list(checkpoint.witness_sigs or ()),
        "checkpoint": data,
        "path": path,
        "ok": True,
    }
