"""The server drive recorder (SDR0): events of any source in record/* streams, each exactly once, with evidence.

    sources -> adapters -> spool on disk -> hub -> receipt
                             |
                             +- survives kill -9; sends the identical bytes again

`events` gives records their form, `spool` stores them until they have a receipt, `agent` moves them, `adapters` read
sources, `setup` writes configuration and checkpoints, `replay` and `verify` read back and check.
"""

from veen.ext import Product

PRODUCT = Product(
    name="recorder",
    about="Tamper-evident record of the events of a service (SDR0).",
    extra="recorder",
    commands={"recorder": "veen.products.recorder.commands.group:recorder"},
    pages="veen.products.recorder.page:PAGES",
)
