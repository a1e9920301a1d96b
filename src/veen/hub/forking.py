"""Forking a hub, and checking a directory together with what it was forked from (D-77, OUT-02)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from veen.hub.atrest import at_rest
from veen.storage import identity as identities
from veen.storage import layout
from veen.storage.errors import StorageError
from veen.storage.findings import Level
from veen.storage.fs import OsFs
from veen.storage.fsck import Report, verify_data
from veen.storage.identity import HubKeys
from veen.storage.keydir import write_private_key
from veen.storage.outcomes import (
    ForkOrigin,
    check_heads,
    copy_attachments,
    copy_prefix,
    heads,
    origin_of,
    read_fork_origin,
    write_fork_origin,
)
from veen.storage.rebuild import rebuild_index

__all__ = ["fork", "verify_all"]


def fork(
    source: OsFs,
    target: OsFs,
    now: int,
    *,
    cuts: Mapping[bytes, int] | None = None,
    same_identity: bool = False,
    draw: Callable[[int], bytes] = os.urandom,
) -> ForkOrigin:
    """Begin a hub from a prefix of another one, which must not run.

    With a new identity the prefix lies apart, read-only, and labels begin anew. With the same identity the new
    directory goes on from the prefix: whatever the old one signed beyond it becomes proof of equivocation.
    """
    if present := [name for name in target.list("") if name != layout.LOCK]:
        raise StorageError(f"{target.root}: not empty, it holds {present[0]}")
    with at_rest(source, now) as hub:
        hub.store.retire()  # from here on the chunks hold everything
        kept = heads(source, cuts)
        old = hub.keys
        origin = ForkOrigin(old.identity.hub_id, now, same_identity, tuple(kept))
        copy_attachments(source, target)
        if same_identity:
            keys = _continue(source, target, origin, old)
        else:
            section = origin_of(target)
            section.root.mkdir(mode=0o750, parents=True)
            copy_prefix(source, section, kept)
            keys = identities.create(target, draw(32), now)
    write_fork_origin(target, origin, keys.signing_key_at(max(now, keys.identity.current.valid_from)))
    return origin


def _continue(source: OsFs, target: OsFs, origin: ForkOrigin, keys: HubKeys) -> HubKeys:
    """The prefix becomes the log of the new directory itself."""
    copy_prefix(source, target, list(origin.heads))
    target.make_dir(layout.KEYS)
    for key in keys.private.values():
        write_private_key(target.root / layout.KEYS, key)
    rebuild_index(target)
    return keys


def verify_all(
    fs: OsFs, *, level: Level = "full", progress: Callable[[str], None] | None = None, jobs: int = 1
) -> list[Report]:
    """The reports on a directory and, in a fork, on its origin; VerifyError if the two do not belong together."""
    reports = [verify_data(fs, level=level, progress=progress, jobs=jobs)]
    if not identities.exists(fs):
        return reports
    identity = identities.read_identity(fs)
    origin = read_fork_origin(fs, tuple(key.hub_pk for key in identity.keys))
    if origin is None:
        return reports
    if not origin.same_identity:
        origins = verify_all(origin_of(fs), level=level, progress=progress, jobs=jobs)
        reports += [_without_derived(report) for report in origins]
    found = {
        label: (summary.size, summary.root)
        for label, summary in reports[-1 if origin.same_identity else 1].labels.items()
    }
    check_heads(origin, found, exact=not origin.same_identity)
    return reports


def _without_derived(report: Report) -> Report:
    """Nobody serves from an origin section, so it needs no index; whoever wants one makes it with rebuild-index."""
    return replace(report, findings=tuple(found for found in report.findings if found.code != "rebuildable"))
