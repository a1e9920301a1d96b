"""Requests of a replica to its primary: labels with new entries, the control journal, and attachments (D-78)."""

from dataclasses import dataclass
from typing import Annotated, Final

from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.objects.tooling.reading import LabelInfo
from veen.core.wire import Bytes32, Length, Map, Uint

_MAX_ENTRIES: Final = 16  # of one attachment; one that belongs to more is never erased


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest(Map, kind="feed request"):
    """Request for changes since an earlier answer.

    `control_bytes` is the length of the caller's copy of the control journal; `instance` and `after` are `instance` and
    `commit` of the earlier answer. If nothing has changed, the hub waits up to `wait_sec`.
    """

    control_bytes: Uint
    wait_sec: Uint
    instance: Bytes32 | None = None
    after: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedResponse(Map, kind="feed response"):
    """State of the hub at one moment: every entry that it appends later follows all that this answer counts.

    `labels` are those with entries after `after`; if `complete` is false there are more, and `inspect` lists all of
    them. `control` is the control journal from the requested byte on, or the first part of that.
    """

    instance: Bytes32  # of the process: another one counts its commits anew
    commit: Uint
    hub_ts: Uint  # of the newest entry or control record
    entries: Uint  # of all labels
    control_bytes: Uint  # how long the control journal is
    control: bytes
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedEntry(Map, kind="attached entry"):
    """An entry that an attachment belongs to, by the names that its writer knows."""

    label: Bytes32
    client_id: Bytes32
    client_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttachment(Map, kind="stored attachment"):
    """Metadata of an attachment; its bytes are at /tooling/attachment/<coid>."""

    number: Uint  # of the change
    coid: Bytes32
    size: Uint
    owner: bytes  # whose quota it counts for; empty: nobody's
    pinned: bool  # retention never erases it
    entries: Annotated[tuple[AttachedEntry, ...], Length(0, _MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsRequest(Map, kind="attachments request"):
    """Request for attachments that are new or changed after a number.

    `instance` and `after` are those of an earlier answer.
    """

    after: Uint
    instance: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsResponse(Map, kind="attachments response"):
    """Attachments in the order of their changes; an empty list: no change up to the number `last` remains.

    An instance other than the requested one counts its changes anew, and the answer begins with the first.
    """

    instance: Bytes32
    last: Uint
    attachments: Annotated[tuple[StoredAttachment, ...], Length(0, MAX_LISTED)]
