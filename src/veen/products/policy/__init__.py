"""The policy agent: brings hubs in line with the records of a realm's administration (docs/policy.md)."""

from veen.ext import Product

PRODUCT = Product(
    name="policy",
    about="Revocations of a realm, and hubs that enforce them.",
    commands={"policy": "veen.products.policy.commands.group:policy"},
)
