"""Options of `veen policy` commands: the streams to fold, and the hubs to update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.label.realm import AdminRealm, realm_options
from veen.cli.shared.authority import read_token
from veen.cli.shared.command import CliSession
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.names import CONTEXT, STREAM
from veen.cli.shared.overlay_commands import HEX32

if TYPE_CHECKING:
    from veen.client.session import PinnedHub
    from veen.overlays.federation.realm import RealmFold
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.snapshot import Snapshot
    from veen.overlays.operations.delegation import Caps
    from veen.products.policy.agent import HubReport, PolicyAgent, PolicyFolds

F = TypeVar("F", bound=Callable[..., Any])

_TO: Final = click.option(
    "--to", "targets", type=CONTEXT, multiple=True, help="Context of a hub to update. Repeatable. Default: this hub."
)
_ACCESS: Final = click.option(
    "--access", "access", type=STREAM, multiple=True, help="Stream with grants and their revocations. Repeatable."
)
_GRANTER: Final = click.option(
    "--granter",
    "granters",
    type=HEX32,
    multiple=True,
    help="Principal that may grant and revoke on --access. Repeatable.",
)
_PRINCIPAL: Final = click.option(
    "--principal",
    "principals",
    type=HEX32,
    multiple=True,
    help="Principal whose disabled, revoked and expired devices hubs refuse. Repeatable.",
)
_TOKEN: Final = click.option(
    "--token",
    "tokens",
    type=OBJECT_FILE,
    multiple=True,
    help="Capability token of a grant: its revocation is sent to hubs. Repeatable.",
)


def realm_fold(session: CliSession, realm: AdminRealm) -> "RealmFold":
    """Return the fold of a realm: on each of its streams, the records of authors with that right."""
    from veen.overlays.federation.realm import RealmFold

    return RealmFold(realm.realm_id, **realm.rule(session, realm.revocation_stream(), realm.authority_stream()))


@dataclass(frozen=True, slots=True)
class PolicySources:
    """Values of a command's options."""

    realm: AdminRealm
    targets: tuple[str, ...]
    access: tuple[str, ...]
    granters: tuple[bytes, ...]
    principals: tuple[bytes, ...]
    tokens: tuple[Path, ...]

    def streams(self, session: CliSession) -> list[str]:
        """Return the streams to fold. Of the realm's two, those that the keyring can read; at least one."""
        from veen.client.errors import UnknownStream
        from veen.overlays.id.ids import principal_stream

        ring = session.keystore.secrets.keyring
        readable = []
        for stream in (self.realm.revocation_stream(), self.realm.authority_stream()):
            try:
                if any(keys.can_read for keys in ring.readers(stream)):
                    readable.append(stream)
            except UnknownStream:
                continue
        if not readable:
            ring.readers(self.realm.revocation_stream())  # names the stream whose key is needed
        return [*readable, *self.access, *(f"hex:{principal_stream(pk).hex()}" for pk in self.principals)]

    def folds(self, session: CliSession) -> "PolicyFolds":
        from veen.overlays.id.fold import IdFold
        from veen.overlays.operations.access import AccessFold
        from veen.products.policy.agent import PolicyFolds

        caps = self._caps(session)
        return PolicyFolds(
            realm=realm_fold(session, self.realm),
            access=AccessFold(granters=self.granters, caps=caps) if self.access else None,
            devices=IdFold() if self.principals else None,
            principals=frozenset(self.principals),
            caps=caps,
        )

    def _caps(self, session: CliSession) -> "Caps":
        """Return the tokens, each with the time at which the hub recorded it."""
        from veen.overlays.operations.delegation import Caps, KnownCap

        caps = []
        for path in self.tokens:
            token = read_token(path)
            caps.append(KnownCap(token, session.client().cap_status(token.auth_ref()).issued_at))
        return Caps(caps)


def policy_options(command: F) -> F:
    """Give a command its `sources`."""

    @realm_options
    @_TO
    @_ACCESS
    @_GRANTER
    @_PRINCIPAL
    @_TOKEN
    @wraps(command)
    def run(
        *args: Any,
        realm: AdminRealm,
        targets: tuple[str, ...],
        access: tuple[str, ...],
        granters: tuple[bytes, ...],
        principals: tuple[bytes, ...],
        tokens: tuple[Path, ...],
        **kwargs: Any,
    ) -> Any:
        if bool(access) != bool(granters):
            raise click.UsageError("give --access and --granter together: without a granter no grant is valid")
        return command(*args, sources=PolicySources(realm, targets, access, granters, principals, tokens), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def agent_of(
    session: CliSession,
    sources: PolicySources,
    hubs: "Sequence[PinnedHub]" = (),
    report: "Callable[[HubReport], None]" = lambda report: None,
) -> "PolicyAgent":
    from veen.products.policy.agent import PolicyAgent, policy_link

    streams, folds = sources.streams(session), sources.folds(session)
    opened = {hub.name: partial(policy_link, hub) for hub in hubs}
    states = CachedStates(session, folds.present, streams)
    return PolicyAgent(folds, streams, opened, report=report, kept=states)


class CachedStates:
    """The states of the agent's folds in the cache of the home (`KeptStates` of the agent)."""

    def __init__(self, session: CliSession, folds: "Sequence[AnyFold]", streams: Sequence[str]) -> None:
        from veen.cli.shared.folding import FoldCache, read_keys

        keys, fs = read_keys(session, streams), session.home.folds_fs(session.identity_name)
        hub_id = session.client().hub_id
        self._caches = {fold.name: FoldCache(fs, hub_id, fold, keys, purpose="policy") for fold in folds}

    def load(self) -> "Mapping[str, Snapshot] | None":
        """Return the saved states; None if one of them is missing, damaged, or of another position of the log."""
        from veen.overlays.framework.snapshot import SnapshotRefused

        try:
            cached = {name: cache.load() for name, cache in self._caches.items()}
        except SnapshotRefused:
            return None
        snapshots = {name: entry.snapshot for name, entry in cached.items() if entry is not None and not entry.unopened}
        if len(snapshots) < len(self._caches) or len({snapshot.cuts for snapshot in snapshots.values()}) > 1:
            return None
        return snapshots

    def save(self, snapshots: "Mapping[str, Snapshot]") -> None:
        from veen.cli.shared.folding import CachedFold

        for name, snapshot in snapshots.items():
            self._caches[name].save(CachedFold(snapshot=snapshot, ts=0, unopened=0))

    def forget(self) -> None:
        for cache in self._caches.values():
            cache.forget()
