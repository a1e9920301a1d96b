"""Hubs with logs of other hubs: mirrors that attest or copy entries, and replicas (D-149)."""

from veen.ext import Product

PRODUCT = Product(
    name="federation",
    about="Logs of other hubs: mirrors and replicas.",
    commands={
        "mirror": "veen.products.federation.commands.mirror:mirror",
        "replica": "veen.products.federation.commands.replica:replica",
    },
)
