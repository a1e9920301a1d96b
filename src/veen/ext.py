"""What packages beside VEEN are written with: products, overlays, adapters of the recorder.

Names are imported when they are first used; `Product` is here, so that declaring a product imports nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Product"]


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
