"""The policy agent: keeps hubs at what the administration of a realm says (docs/policy.md)."""

from veen.ext import Product

PRODUCT = Product(
    name="policy",
    about="Revocations of a realm, and hubs that enforce them.",
    commands={"policy": "veen.products.policy.commands.group:policy"},
)
