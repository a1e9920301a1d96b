"""The server drive recorder (SDR0): events from any source into record/* streams, each exactly once, with evidence.

    sources -> adapters -> spool on disk -> hub -> receipt
                              |
                              +- survives kill -9; sends the identical bytes again

`events` shapes records, `spool` keeps them until they have a receipt, `agent` moves them, `adapters` read sources,
`checkpoint` binds all streams into one root, `replay` and `verify` read back and judge.
"""

from veen.ext import Product

PRODUCT = Product(
    name="recorder",
    about="Tamper-evident record of the events of a service (SDR0).",
    extra="recorder",
    commands={"recorder": "veen.products.recorder.commands.group:recorder"},
    pages="veen.products.recorder.page:PAGES",
)
