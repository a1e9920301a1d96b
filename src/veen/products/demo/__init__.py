"""`veen demo`: a story with real hubs, clients and files."""

from veen.ext import Product

PRODUCT = Product(
    name="demo",
    about="The whole idea at work in one minute.",
    commands={"demo": "veen.products.demo.command:demo"},
)
