"""Registry of overlays: the built-in ones, and those that other packages bring (outcome Interpret).

A package offers an overlay by an entry point of the group `veen.overlays` that names an `Overlay`:

    [project.entry-points."veen.overlays"]
    votes = "example.votes:OVERLAY"

A hub needs no change for a new overlay: it works over logs that are older than itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from veen.overlays import anchoring, crdt, crud, kv, queue, speaks
from veen.overlays.discovery import bodies as discovery
from veen.overlays.discovery import directory
from veen.overlays.federation import realm
from veen.overlays.framework.fold import AnyFold, Joined
from veen.overlays.framework.nouns import Noun
from veen.overlays.framework.schema import AnySchema, SchemaClash, SchemaSet
from veen.overlays.framework.speaking import SPEAKING, STATEMENTS
from veen.overlays.framework.typed_table import StateTable, TypedTable
from veen.overlays.id import bodies as identity
from veen.overlays.id import fold as identity_fold
from veen.overlays.id import letter as identity_letter
from veen.overlays.id import nouns as identity_nouns
from veen.overlays.id import tables as identity_tables
from veen.overlays.naming import label_class as labelclass
from veen.overlays.naming import schema_registry as schemaregistry
from veen.overlays.operations import access, agreement, delegation, mirror, paid, publication, queryaudit, recovery
from veen.overlays.operations import nouns as operation_nouns
from veen.overlays.operations import schemas as operations
from veen.overlays.operations import state_checkpoint as statecheckpoint
from veen.overlays.recorder import checkpoint as recorder_checkpoint
from veen.overlays.recorder import config as recorder_config
from veen.overlays.recorder import events as recorder_events
from veen.overlays.rpc import messages as rpc
from veen.overlays.wallet import bodies as wallet
from veen.overlays.wallet import ledger
from veen.overlays.wallet import letter as wallet_letter
from veen.overlays.wallet import nouns as wallet_nouns

GROUP: Final = "veen.overlays"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Declaration of an overlay: the schemas that it reads and writes, its folds, its tables."""

    name: str
    about: str  # one line
    schemas: tuple[AnySchema, ...]
    folds: Mapping[str, Callable[..., AnyFold]]  # by state class; called with mirrors= and the fold's own settings
    tables: tuple[TypedTable, ...] = ()  # at most one for each schema
    states: tuple[StateTable, ...] = ()  # of the folds; those of the nouns are added
    nouns: tuple[Noun, ...] = ()  # `veen NAME`: commands, lists, tables and sections of the console follow from them

    def __post_init__(self) -> None:
        own = {state.name for state in self.states}
        of_nouns = (noun.state_table() for noun in self.nouns if noun.table)
        object.__setattr__(self, "states", (*self.states, *(table for table in of_nouns if table.name not in own)))
        if strange := [state.name for state in self.states if state.fold not in self.folds]:
            raise ValueError(f"the overlay {self.name}: {strange[0]} is the table of a fold that it does not have")
        of = [table.schema for table in self.tables]
        if any(schema not in self.schemas or of.count(schema) > 1 for schema in of):
            raise ValueError(f"the overlay {self.name}: each typed table needs a schema of the overlay for itself")


@dataclass(frozen=True, slots=True)
class Broken:
    """An installed overlay that cannot be used, with the reason."""

    name: str
    reason: str


class Registry(Mapping[str, Overlay]):
    """Overlays by name; schemas, folds and tables of all of them."""

    def __init__(self, overlays: Iterable[Overlay] = (), broken: Iterable[Broken] = ()) -> None:
        self._overlays: dict[str, Overlay] = {}
        self.schemas = SchemaSet()
        self.folds: dict[str, Callable[..., AnyFold]] = {}
        self.tables: dict[str, TypedTable] = {}  # by the name of the table
        self.states: dict[str, StateTable] = {}  # the same
        self.broken = list(broken)
        for overlay in overlays:
            self._add(overlay)

    def _add(self, overlay: Overlay) -> None:
        schemas = self.schemas | SchemaSet(overlay.schemas)  # SchemaClash leaves the registry as it was
        for name in (overlay.name, *overlay.folds):
            if name in self._overlays or name in self.folds:
                raise SchemaClash(name)
        names = [*(table.name for table in overlay.tables), *(state.name for state in overlay.states)]
        for name in names:
            if name in self.tables or name in self.states or names.count(name) > 1:
                raise SchemaClash(name)
        self.schemas = schemas
        self._overlays[overlay.name] = overlay
        self.folds.update(overlay.folds)
        self.tables.update((table.name, table) for table in overlay.tables)
        self.states.update((table.name, table) for table in overlay.states)

    def with_installed(self, points: Iterable[EntryPoint] | None = None) -> "Registry":
        """Return a registry with the overlays of entry points added. Those that fail to load are listed in `broken`."""
        overlays, broken = discover(points)
        registry = Registry(self._overlays.values(), [*self.broken, *broken])
        for overlay in overlays:
            try:
                registry._add(overlay)
            except SchemaClash as exc:
                registry.broken.append(Broken(overlay.name, str(exc)))
        return registry

    def make_fold(self, name: str) -> AnyFold | None:
        """Return the fold of an overlay (several are joined), or the fold of this name; None if it is unknown.

        "a+b" is both as one, as the name of such a state says.
        """
        parts = name.split("+")
        if len(parts) > 1:
            candidates = [self.make_fold(part) for part in parts]
            ready = [fold for fold in candidates if fold is not None]
            return Joined(ready) if len(ready) == len(parts) else None
        if (overlay := self.get(name)) is not None:
            folds = [make() for make in overlay.folds.values()]
            return (folds[0] if len(folds) == 1 else Joined(folds)) if folds else None
        make = self.folds.get(name) or BY_LETTER.get(name)
        return None if make is None else make()

    def why_not(self, name: str) -> str | None:
        """Return the reason why an overlay cannot be folded; None if it is not installed."""
        if name in self and not self[name].folds:
            return "it declares schemas and tables, and no fold"
        return next((overlay.reason for overlay in self.broken if overlay.name == name), None)

    def __getitem__(self, name: str) -> Overlay:
        return self._overlays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._overlays)

    def __len__(self) -> int:
        return len(self._overlays)


def discover(points: Iterable[EntryPoint] | None = None) -> tuple[list[Overlay], list[Broken]]:
    """Load the overlays that installed packages offer, sorted by the names of their entry points."""
    overlays, broken = [], []
    for point in sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: p.name):
        try:
            loaded: Any = point.load()
        except Exception as exc:  # foreign code may raise anything while it is imported
            broken.append(Broken(point.name, f"{type(exc).__name__}: {exc}"))
            continue
        if isinstance(loaded, Overlay):
            overlays.append(loaded)
        else:
            broken.append(Broken(point.name, f"{point.value} is no Overlay"))
    return overlays, broken


def _tables(schemas: Iterable[AnySchema]) -> tuple[TypedTable, ...]:
    return tuple(map(TypedTable.of, schemas))


# Folds that follow their texts to the letter, to compare implementations (D-180). Lakes have no tables of them.
BY_LETTER: Final[Mapping[str, Callable[..., AnyFold]]] = {
    identity_letter.LetterIdFold.name: identity_letter.LetterIdFold,
    wallet_letter.LetterLedgerFold.name: wallet_letter.LetterLedgerFold,
}

BUILTIN: Final = Registry(
    [
        Overlay(
            name="kv",
            about="values by key, the last writer wins",
            schemas=(kv.KV,),
            folds={"kv": kv.KvFold},
            tables=_tables((kv.KV,)),
            states=kv.STATES,
            nouns=tuple(kv.NOUNS.values()),
        ),
        Overlay(
            name="crud",
            about="records by entity and id, with revisions",
            schemas=(crud.CRUD,),
            folds={"crud": crud.CrudFold},
            tables=_tables((crud.CRUD,)),
            states=crud.STATES,
            nouns=tuple(crud.NOUNS.values()),
        ),
        Overlay(
            name="queue",
            about="items in order, delivered at least once to each group",
            schemas=(queue.QUEUE,),
            folds={"queue": queue.QueueFold},
            tables=_tables((queue.QUEUE,)),
            states=queue.STATES,
            nouns=tuple(queue.NOUNS.values()),
        ),
        Overlay(
            name="crdt",
            about="registers, sets and counters (CRDT0)",
            schemas=(crdt.LWW, crdt.ORSET, crdt.GCNT),
            folds={"crdt.lww": crdt.LwwFold, "crdt.orset": crdt.OrSetFold, "crdt.gcnt": crdt.CounterFold},
            tables=_tables((crdt.LWW, crdt.ORSET, crdt.GCNT)),
            states=crdt.STATES,
        ),
        Overlay(
            name="rpc",
            about="calls and their answers (RPC0)",
            schemas=(rpc.CALL, rpc.REPLY),
            folds={"rpc": rpc.RpcFold},
            tables=_tables((rpc.CALL, rpc.REPLY)),
            states=rpc.STATES,
        ),
        Overlay(
            name="id",
            about="principals, accounts, organizations, handles, links (ID)",
            schemas=tuple(identity.SCHEMAS.values()),
            folds={"id": identity_fold.IdFold},
            tables=_tables(tuple(identity.SCHEMAS.values())),
            states=identity_tables.STATES,
            nouns=tuple(identity_nouns.NOUNS.values()),
        ),
        Overlay(
            name="wallet",
            about="accounts and the transfers between them (WAL)",
            schemas=tuple(wallet.SCHEMAS.values()),
            folds={"wallet.ledger": ledger.LedgerFold},
            tables=_tables(tuple(wallet.SCHEMAS.values())),
            states=ledger.STATES,
            nouns=tuple(wallet_nouns.NOUNS.values()),
        ),
        Overlay(
            name="realm",
            about="authority over streams, and revocations (FED1, KEX1+)",
            schemas=(realm.AUTHORITY, realm.REVOCATION),
            folds={"realm": realm.RealmFold},
            tables=_tables((realm.AUTHORITY, realm.REVOCATION)),
            states=realm.STATES,
        ),
        Overlay(
            name="anchor",
            about="roots of other hubs, stated in this log (ANCHOR0)",
            schemas=(anchoring.ANCHOR,),
            folds={"anchor": anchoring.AnchorFold},
            tables=_tables((anchoring.ANCHOR,)),
            states=anchoring.STATES,
        ),
        Overlay(
            name="state",
            about="what someone says a state is, for others to verify (001 spec-3 §7)",
            schemas=(statecheckpoint.CHECKPOINT,),
            folds={"state.checkpoint": statecheckpoint.StateCheckpointFold},
            tables=_tables((statecheckpoint.CHECKPOINT,)),
            states=statecheckpoint.STATES,
        ),
        Overlay(
            name="operation",
            about="payments, grants, delegation, agreements, publications, recoveries, audits, mirrors (001 spec-3)",
            schemas=tuple(operations.ALL.values()),
            folds={
                "operation.paid": paid.PaidFold,
                "operation.access": access.AccessFold,
                "operation.delegated": delegation.DelegationFold,
                "operation.agreement": agreement.AgreementFold,
                "operation.publication": publication.PublicationFold,
                "operation.recovery": recovery.RecoveryFold,
                "operation.queryaudit": queryaudit.make_fold,
                "operation.mirror": mirror.MirrorFold,
            },
            tables=_tables(tuple(operations.ALL.values())),
            states=(
                *paid.STATES,
                *access.STATES,
                *delegation.STATES,
                *agreement.STATES,
                *publication.STATES,
                *recovery.STATES,
                *queryaudit.STATES,
                *mirror.STATES,
            ),
            nouns=tuple(operation_nouns.NOUNS.values()),
        ),
        Overlay(
            name="speaks",
            about="client keys that speak for principals (D-179)",
            schemas=tuple(SPEAKING.values()),
            folds={"speaks": speaks.SpeaksFold},
            tables=_tables(tuple(STATEMENTS.values())),
            states=speaks.STATES,
        ),
        Overlay(
            name="discovery",
            about="hubs, overlays and services that can be found (001 spec-5)",
            schemas=discovery.SCHEMAS,
            folds={"discovery": directory.DirectoryFold},
            tables=_tables(discovery.SCHEMAS),
            states=directory.STATES,
        ),
        Overlay(
            name="labelclass",
            about="hints about labels: padding, rate, retention (LCLASS0)",
            schemas=(labelclass.LABEL_CLASS,),
            folds={"label.class": labelclass.LabelClassFold},
            tables=_tables((labelclass.LABEL_CLASS,)),
            states=labelclass.STATES,
        ),
        Overlay(
            name="schemaregistry",
            about="which schemas there are, and whose (META0+)",
            schemas=(schemaregistry.META_SCHEMA,),
            folds={"schema.registry": schemaregistry.SchemaRegistryFold},
            tables=_tables((schemaregistry.META_SCHEMA,)),
            states=schemaregistry.STATES,
        ),
        Overlay(
            name="recorder",
            about="events of the recorder, its configuration and checkpoints (SDR0)",
            schemas=(recorder_events.EVENT, recorder_config.CONFIG, recorder_checkpoint.CHECKPOINT),
            folds={},
            tables=(recorder_events.EVENTS_TABLE, recorder_config.CONFIG_TABLE, recorder_checkpoint.CHECKPOINT_TABLE),
        ),
    ]
)
