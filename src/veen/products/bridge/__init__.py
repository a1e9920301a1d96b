"""The air-gap bridge (AGB0): events that cross from one zone to another with their evidence (001 products §4)."""

from veen.ext import Product

PRODUCT = Product(
    name="bridge",
    about="Events that cross an air gap with their evidence (AGB0).",
    extra="bridge",
    commands={"bridge": "veen.products.bridge.commands.group:bridge"},
    pages="veen.products.bridge.page:PAGES",
)
