"""Planning: the entries that a query has to read, by the labels of its streams, pinned heads, and times of chunks.

Entries that only the journal of a running hub has are included. Heads are pinned once, so one execution sees one
prefix; a repeated execution takes the heads of the first (QRY-28).
"""

from collections.abc import Mapping
from dataclasses import replace

from veen.core.objects.identity import HubIdentity
from veen.io.places import open_fs
from veen.lake.log.prefix import Prefix, Shortened, make_prefix
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.errors import EvidenceFailed, ExecutionFailed
from veen.storage.pinned import pin


def plan_query(
    uri: str,
    descriptor: QueryDescriptor,
    *,
    heads: Mapping[bytes, int] | None = None,
    identity: HubIdentity | None = None,
) -> Prefix:
    """Pin the directory, find the labels of the scope, select chunks by time.

    `heads` are those of an earlier execution: the same prefix is read again, or EvidenceFailed names what is gone.
    `identity` is the hub's, where it is known from elsewhere; a directory of another hub is refused.
    """
    if not open_fs(uri).exists("log"):
        raise ExecutionFailed(f"{uri}: there is no log")
    pinned = pin(uri, reach=heads)
    if identity is not None:
        if pinned.identity is not None and pinned.identity.hub_id != identity.hub_id:
            raise EvidenceFailed(
                f"the directory is of hub {pinned.identity.hub_id.hex()}, not of {identity.hub_id.hex()}"
            )
        pinned = replace(pinned, identity=identity)
    _check_covered(heads, pinned.labels)
    times = descriptor.filter
    try:
        prefix = make_prefix(
            uri,
            streams=descriptor.stream_names,
            upto=heads,
            first_ts=times.first_ts,
            last_ts=times.last_ts,
            pinned=pinned,
        )
    except Shortened as exc:
        raise EvidenceFailed(f"{exc}: the log was cut") from exc
    _check_covered(heads, prefix.heads)  # also of the streams of the scope
    return prefix


def _check_covered(heads: Mapping[bytes, int] | None, labels: Mapping[bytes, object]) -> None:
    if heads is not None and (gone := sorted(heads.keys() - labels.keys())):
        raise EvidenceFailed(f"label {gone[0].hex()} was covered before and is missing in the directory now")
