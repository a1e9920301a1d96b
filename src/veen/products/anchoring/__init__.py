"""Anchors outside of the machine: published, listed, verified (docs/anchors.md)."""

from veen.ext import Product

PRODUCT = Product(
    name="anchoring",
    about="Roots of logs that somebody outside remembers (ANCHOR0).",
    extra="anchor",
    commands={"anchor": "veen.products.anchoring.commands:anchor"},
    pages="veen.products.anchoring.page:PAGES",
)
