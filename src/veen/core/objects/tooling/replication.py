"""What a replica asks its primary: which labels got entries, and the control journal (D-78)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.objects.tooling.reading import LabelInfo
from veen.core.wire import Bytes32, Length, Map, Uint

__all__ = ["FeedRequest", "FeedResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest(Map):
    """What changed since an answer before? `control_bytes` is how much of the control journal the caller has;
    `instance` and `after` are `instance` and `commit` of that answer. If nothing did, it waits up to `wait_sec`.
    """

    KIND: ClassVar[str] = "feed request"

    control_bytes: Uint
    wait_sec: Uint
    instance: Bytes32 | None = None
    after: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedResponse(Map):
    """How far the hub is, as of one moment: every entry that it appends later comes behind all that this answer counts.

    `labels` are those that got entries after `after`; unless `complete`, there are more, and `inspect` lists all of
    them. `control` is the control journal from the byte that was asked for on, or the first part of that.
    """

    KIND: ClassVar[str] = "feed response"

    instance: Bytes32  # of the process: another one counts its commits anew
    commit: Uint
    hub_ts: Uint  # of the newest entry or control record
    entries: Uint  # of all labels
    control_bytes: Uint  # how long the control journal is
    control: bytes
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    complete: bool
