"""Issuance of capability tokens over RPC: the service and its clients (001 spec-5 §7.3).

`service` has the list of grants, the method `cap.issue` for an RPC server, and the call with its checks.
"""

from veen.ext import Product

PRODUCT = Product(
    name="issuance",
    about="Capability tokens on request.",
    commands={"connect": "veen.products.issuance.commands.connect:connect"},
)
