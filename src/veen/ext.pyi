# The types of the names that ext.py imports when they are first used.
from collections.abc import Mapping
from dataclasses import dataclass

from veen.core.event import Order as Order
from veen.overlays.framework.args import Arg as Arg
from veen.overlays.framework.fold import Compact
from veen.overlays.framework.nouns import Noun as Noun
from veen.overlays.framework.nouns import Verb as Verb
from veen.overlays.framework.registry import Overlay as Overlay
from veen.overlays.framework.runner import Runner as Runner
from veen.overlays.framework.schema import Body as Body
from veen.overlays.framework.schema import Draft as Draft
from veen.overlays.framework.schema import InvalidBody as InvalidBody
from veen.overlays.framework.schema import Schema as Schema
from veen.overlays.framework.schema import SchemaSet as SchemaSet
from veen.overlays.framework.schema import Typed as Typed
from veen.overlays.framework.schema import Violation as Violation
from veen.overlays.framework.snapshot import Cut as Cut
from veen.overlays.framework.snapshot import Snapshot as Snapshot
from veen.overlays.framework.snapshot import SnapshotRefused as SnapshotRefused
from veen.overlays.framework.state import state_hash as state_hash
from veen.overlays.framework.typed_table import StateTable as StateTable
from veen.overlays.framework.typed_table import TypedColumn as TypedColumn
from veen.overlays.framework.typed_table import TypedTable as TypedTable
from veen.products.recorder.adapters.registry import SourceConfig as SourceConfig
from veen.products.recorder.adapters.registry import SourceInvalid as SourceInvalid
from veen.products.recorder.events import SourceRecord as SourceRecord
from veen.products.recorder.sink import Adapter as Adapter
from veen.products.recorder.sink import SpoolSink as SpoolSink

__all__: list[str]

Fold = Compact

@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    name: str
    about: str
    extra: str | None = None
    commands: Mapping[str, str] = ...
    pages: str | None = None
