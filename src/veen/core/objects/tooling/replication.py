"""What a replica asks its primary: which labels got entries, the control journal, and attachments (D-78)."""

from dataclasses import dataclass
from typing import Annotated, Final

from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.objects.tooling.reading import LabelInfo
from veen.core.wire import Bytes32, Length, Map, Uint

_MAX_ENTRIES: Final = 16  # of one attachment; one that belongs to more is never erased


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest(Map, kind="feed request"):
    """What changed since an answer before? `control_bytes` is how much of the control journal the caller has;
    `instance` and `after` are `instance` and `commit` of that answer. If nothing did, it waits up to `wait_sec`.
    """

    control_bytes: Uint
    wait_sec: Uint
    instance: Bytes32 | None = None
    after: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedResponse(Map, kind="feed response"):
    """How far the hub is, as of one moment: every entry that it appends later comes behind all that this answer counts.

    `labels` are those that got entries after `after`; unless `complete`, there are more, and `inspect` lists all of
    them. `control` is the control journal from the byte that was asked for on, or the first part of that.
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
    """What a hub notes of an attachment; its bytes are at /tooling/attachment/<coid>."""

    number: Uint  # of the change
    coid: Bytes32
    size: Uint
    owner: bytes  # whose quota it counts for; empty: nobody's
    pinned: bool  # retention never erases it
    entries: Annotated[tuple[AttachedEntry, ...], Length(0, _MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsRequest(Map, kind="attachments request"):
    """Which attachments came or changed behind a number? `instance` and `after` are those of an answer before."""

    after: Uint
    instance: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsResponse(Map, kind="attachments response"):
    """The first of them, in the order of their changes; none: there is no change up to the number `last` any more.

    Another `instance` than the one asked for counts its changes anew, and the answer begins with the first.
    """

    instance: Bytes32
    last: Uint
    attachments: Annotated[tuple[StoredAttachment, ...], Length(0, MAX_LISTED)]
