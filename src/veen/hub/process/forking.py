"""Forking of a hub, and verification of a directory together with its fork origin (D-77, OUT-02)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.trusted_root import TrustedKeys
from veen.hub.process.startup import at_rest
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.copies.copying import (
    ForkOrigin,
    check_apart,
    check_empty,
    check_heads,
    copy_attachments,
    copy_identity,
    copy_prefix,
    heads,
    origin_of,
    read_fork_origin,
    write_fork_origin,
)
from veen.storage.copies.unfinished import begin_copy, check_finished, finish_copy
from veen.storage.findings import Level
from veen.storage.index import Index
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys
from veen.storage.maintenance.rebuild import rebuild_index
from veen.verify.directory import Report, verify_data


def fork(
    source: OsFs,
    target: OsFs,
    now: int,
    *,
    cuts: Mapping[bytes, int] | None = None,
    same_identity: bool = False,
    accept_clock: bool = False,
    draw: Callable[[int], bytes] = os.urandom,
) -> ForkOrigin:
    """Create a hub from a prefix of another one, which must not run.

    With a new identity the prefix is kept apart, read-only, and labels start empty. With the same identity the new
    directory continues the prefix: whatever the old hub signed beyond it becomes proof of equivocation.
    """
    check_apart(source.root, target.root)
    check_finished(source, str(source.root))
    check_empty(target)
    with target.lock(), at_rest(source, now, accept_clock=accept_clock) as hub:
        hub.store.retire()  # from here on the chunks hold everything
        prefix_heads = heads(source, cuts)
        begin_copy(target, "fork")
        origin = ForkOrigin(hub.keys.identity.hub_id, now, same_identity, tuple(prefix_heads))
        copy_attachments(source, target)
        if same_identity:
            _copy_as_log(source, target, origin, hub.keys)
        else:
            _copy_apart(source, target, origin, draw(32))
        finish_copy(target)
    return origin


def _copy_apart(source: OsFs, target: OsFs, origin: ForkOrigin, seed: bytes) -> None:
    """Copy the prefix into the origin section; write the identity of the new hub last."""
    target.make_dir(layout.ORIGIN)
    section = origin_of(target)
    copy_prefix(source, section, list(origin.heads))
    copy_identity(source, section)
    write_fork_origin(target, origin, SigningKey(seed))
    identities.create(target, seed, origin.forked_at)


def _copy_as_log(source: OsFs, target: OsFs, origin: ForkOrigin, keys: HubKeys) -> None:
    """Copy the prefix as the log of the new directory; write keys and identity last."""
    copy_prefix(source, target, list(origin.heads))
    rebuild_index(target)
    signer = keys.signing_key_at(max(origin.forked_at, keys.identity.current.valid_from))
    write_fork_origin(target, origin, signer)
    for key in keys.private.values():
        identities.write_key(target, key)
    copy_identity(source, target)
    index = Index(target)
    try:
        identities.write_binding(target, keys.identity, index)
    finally:
        index.close()


def verify_all(
    fs: OsFs,
    *,
    level: Level = "full",
    pin: TrustedKeys | None = None,
    progress: Callable[[str], None] | None = None,
    jobs: int = 1,
) -> list[Report]:
    """Verify a directory and, in a fork, its origin. Return the reports; raise VerifyError if the two do not match.

    `pin` is for the directory itself. Its hub signed the identity and the heads of the origin.
    """
    reports = [verify_data(fs, level=level, pin=pin, progress=progress, jobs=jobs)]
    if not identities.exists(fs):
        return reports
    identity = identities.read_identity(fs)
    origin = read_fork_origin(fs, tuple(key.hub_pk for key in identity.keys))
    if origin is None:
        return reports
    if not origin.same_identity:
        origins = verify_all(origin_of(fs), level=level, progress=progress, jobs=jobs)
        reports += [_without_derived(report) for report in origins]
    summaries = {
        label: (summary.size, summary.root)
        for label, summary in reports[-1 if origin.same_identity else 1].labels.items()
    }
    check_heads(origin, summaries, exact=not origin.same_identity)
    return reports


def _without_derived(report: Report) -> Report:
    """Return the report without findings on derived files: nobody serves from an origin section, so it needs no
    index."""
    return replace(report, findings=tuple(finding for finding in report.findings if finding.code != "rebuildable"))
