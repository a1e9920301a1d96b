"""VESN v0.0.1, the predecessor of VEEN: its logs can be verified, imported, and mirrored into a hub (002).

objects      the records and their canonical encoding
sealing      payloads, rekey chain, keystore
ledger       tree, attachments, inclusion proofs; a hub as a state machine that writes logs
logcheck     receipts and messages, one after another
portability  the files of a set, written and verified
lines        the NDJSON form of a stream; a first look at any file
files        sets in directories, archives of them: the only module that opens files
mirror       federation.mirror.v1 records of a set, through the client of VEEN
"""

from veen.ext import Product

PRODUCT = Product(
    name="vesn",
    about="Logs of VESN, the predecessor.",
    commands={"vesn": "veen.products.vesn.commands:vesn"},
)
