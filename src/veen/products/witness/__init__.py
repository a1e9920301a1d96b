"""A witness of transparency logs (C2SP tlog-witness), and a monitor of the outer logs of hubs."""

from veen.ext import Product

PRODUCT = Product(
    name="witness",
    about="Witnesses of logs, and a monitor that finds contradictions.",
    extra="witness",
    commands={
        "witness": "veen.products.witness.commands.group:witness",
        "monitor": "veen.products.witness.commands.monitor:monitor",
    },
)
