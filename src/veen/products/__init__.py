"""Products: each is a folder with its commands, console pages and services, and one value `PRODUCT` that names them.

A product may be removed, or moved to a package of its own, without a change elsewhere but in the table below: it may
import every room, and no other product. What two of them need moves down. `demo` and `selftest` show all of them. Pages
are written for the console, so a module `page` of a product may import the console.

Start with `recorder`, the largest, or `anchoring`, the smallest: `__init__` names the parts, `commands` is the face.
Packages beside VEEN bring products by entry points of the group `veen.products` (`veen.ext.Product`).
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from veen.ext import Product

__all__ = ["ENTRY_POINTS", "PRODUCTS", "installed"]

# In the order of their pages in the console.
PRODUCTS: Final = (
    "anchoring",
    "recorder",
    "bridge",
    "queryservice",
    "federation",
    "witness",
    "policy",
    "issuance",
    "idgateway",
    "console",
    "kube",
    "vesn",
    "selftest",
    "demo",
)
ENTRY_POINTS: Final = "veen.products"  # the group of packages beside VEEN


def load_products() -> Iterator[Product]:
    """Yield every product: those of this package, then those of other packages."""
    from importlib.metadata import entry_points

    for name in PRODUCTS:
        yield import_module(f"veen.products.{name}").PRODUCT
    for point in entry_points(group=ENTRY_POINTS):
        yield point.load()
