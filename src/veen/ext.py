"""Names that packages beside VEEN are written with: products, overlays, adapters of the recorder (docs/extending.md).

Names are imported when they are first used; `Product` is here, so that declaring a product imports nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from veen.lazy import names_of

_FRAMEWORK = "veen.overlays.framework"
_LAZY = {  # by name, as in veen/__init__.py; their types are in ext.pyi
    "Adapter": "veen.products.recorder.sink:Adapter",
    "Arg": f"{_FRAMEWORK}.args:Arg",
    "Body": f"{_FRAMEWORK}.schema:Body",
    "Cut": f"{_FRAMEWORK}.snapshot:Cut",
    "Draft": f"{_FRAMEWORK}.schema:Draft",
    "Fold": f"{_FRAMEWORK}.fold:Compact",
    "InvalidBody": f"{_FRAMEWORK}.schema:InvalidBody",
    "Noun": f"{_FRAMEWORK}.nouns:Noun",
    "Order": "veen.core.event:Order",
    "Overlay": f"{_FRAMEWORK}.registry:Overlay",
    "Runner": f"{_FRAMEWORK}.runner:Runner",
    "Schema": f"{_FRAMEWORK}.schema:Schema",
    "SchemaSet": f"{_FRAMEWORK}.schema:SchemaSet",
    "SourceConfig": "veen.products.recorder.adapters.registry:SourceConfig",
    "SourceInvalid": "veen.products.recorder.adapters.registry:SourceInvalid",
    "SourceRecord": "veen.products.recorder.events:SourceRecord",
    "SpoolSink": "veen.products.recorder.sink:SpoolSink",
    "Snapshot": f"{_FRAMEWORK}.snapshot:Snapshot",
    "SnapshotRefused": f"{_FRAMEWORK}.snapshot:SnapshotRefused",
    "StateTable": f"{_FRAMEWORK}.typed_table:StateTable",
    "Typed": f"{_FRAMEWORK}.schema:Typed",
    "TypedColumn": f"{_FRAMEWORK}.typed_table:TypedColumn",
    "TypedTable": f"{_FRAMEWORK}.typed_table:TypedTable",
    "Verb": f"{_FRAMEWORK}.nouns:Verb",
    "Violation": f"{_FRAMEWORK}.schema:Violation",
    "state_hash": f"{_FRAMEWORK}.state:state_hash",
}

__all__ = ["Product", *_LAZY]

__getattr__ = names_of(__name__, _LAZY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A feature that is built on the rooms below it: one folder, and one value that names what is in it.

    Modules are named as "module:attribute" and imported when they are used. A package beside VEEN registers its value
    as an entry point of the group `veen.products`.
    """

    name: str
    about: str
    extra: str | None = None  # of the distribution, if the product needs more packages
    commands: Mapping[str, str] = field(default_factory=dict)  # by their names below `veen`: click commands
    pages: str | None = None  # pages of the console: a tuple of `veen.products.console.pages.Page`
