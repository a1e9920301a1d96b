"""The verbs of wallets: `veen wallet deposit` … (WAL §5, docs/overlays-wallet.md).

Kinds of values beside those that all overlays have: wallet (its id, or OWNER:CURRENCY), owner (whose account it belongs
to), and the realm and the clock of the command.
"""

from collections.abc import Mapping
from typing import Any, Final

from veen.overlays.framework.args import Arg
from veen.overlays.framework.nouns import Noun, Row, Verb
from veen.overlays.wallet import bodies
from veen.overlays.wallet.bodies import transfer_id_of, wallet_id_of
from veen.overlays.wallet.ledger import LedgerFold

Args = Mapping[str, Arg]

_WALLET: Final[Args] = {"wallet_id": Arg("wallet", word="name", metavar="WALLET"), "ts": Arg("clock")}
_AMOUNT: Final[Args] = {"amount": Arg("uint")}
_REF: Final[Args] = {"ref": Arg("raw", "An outside reference: the same one counts once.")}
_REASON: Final[Args] = {"reason": Arg(help="Why: it stands in the log.")}
_PLACE: Final = ("wallet_id", "stream")


def _wallet_id(values: dict[str, Any]) -> Row:
    return {"wallet_id": wallet_id_of(values["realm_id"], values["ctx_id"], values["currency"])}


def _transfer_id(values: dict[str, Any]) -> Row:
    """Return the transfer_id that is given, or one of its own for this transfer (D-97)."""
    if values["transfer_id"] is not None:
        return {}
    names = ("wallet_id", "to_wallet_id", "amount", "ts", "nonce")
    return {"transfer_id": transfer_id_of(**{name: values[name] for name in names})}


WALLET: Final = Noun(
    name="wallet",
    help="Accounts on a log: pay, limit, freeze, state, prove.",
    about="""Accounts on a log: every balance can be recomputed by anyone who can read it.

    A WALLET is its id, 64 hex digits, or OWNER:CURRENCY, where OWNER is `me`, a card (veen1…) or a ctx_id. Amounts are
    integers in the smallest unit of the currency.
    """,
    fold=LedgerFold,
    verbs=[
        Verb(
            name="open",
            help="Open a wallet in one currency.",
            about="Open a wallet in CURRENCY, such as EUR, for an owner in a realm.",
            examples=["veen wallet open EUR --make-keys", "veen wallet open EUR --stream bank/ledger --owner veen1xyz"],
            schema=bodies.OPEN,
            args={
                "currency": Arg(),
                "ctx_id": Arg("owner", "Whose: a card (veen1…) or a ctx_id; default: yours.", "--owner", own=True),
                "realm_id": Arg("realm"),
                "created_at": Arg("clock"),
            },
            derive=_wallet_id,
            facts=(*_PLACE, "currency", "ctx_id", "realm_id"),
            follow_up="veen wallet deposit {wallet_id} AMOUNT",
        ),
        # --- payments
        Verb(
            name="deposit",
            help="Money comes in from outside.",
            about="Money comes into WALLET from outside.",
            examples=['veen wallet deposit me:EUR 10000 --ref "bank transfer 4711"'],
            schema=bodies.DEPOSIT,
            args={**_WALLET, **_AMOUNT, **_REF},
            facts=(*_PLACE, "amount"),
        ),
        Verb(
            name="withdraw",
            help="Money goes out.",
            about="Money goes out of WALLET. Exit code 6 and nothing is sent if it may not: see `veen explain "
            "WAL.FROZEN`.",
            schema=bodies.WITHDRAW,
            args={**_WALLET, **_AMOUNT, **_REF},
            facts=(*_PLACE, "amount"),
        ),
        Verb(
            name="transfer",
            help="Money goes from one wallet to another.",
            about="Money goes from WALLET to TO_WALLET, debit and credit at once.",
            examples=["veen wallet transfer me:EUR veen1xyz:EUR 3000"],
            schema=bodies.TRANSFER,
            args={
                **_WALLET,
                "to_wallet_id": Arg("wallet", word="to", metavar="TO_WALLET"),
                **_AMOUNT,
                "transfer_id": Arg("reference", "The same one counts once; default: a new one."),
                "metadata": Arg("object", "A JSON object that travels along; no balance depends on it."),
                "nonce": Arg("nonce"),
            },
            derive=_transfer_id,
            facts=(*_PLACE, "to_wallet_id", "amount", "transfer_id"),
        ),
        # --- what whoever keeps the books does
        Verb(
            name="adjust",
            help="Correct a balance, up or down.",
            about="Correct the balance of WALLET by DELTA; put -- before a negative one.",
            examples=['veen wallet adjust me:EUR --reason "wrong booking" -- -50'],
            schema=bodies.ADJUST,
            args={
                **_WALLET,
                "delta": Arg("integer"),
                "reason": Arg(help="Why: it stands in the log.", required=True),
                **_REF,
            },
            facts=(*_PLACE, "delta", "reason"),
        ),
        Verb(
            name="limit",
            help="How much may leave a wallet in a day.",
            about="Let at most AMOUNT leave WALLET in a day, counted in UTC.",
            schema=bodies.LIMIT,
            args={
                **_WALLET,
                "daily_limit": Arg("uint", word="amount", required=False),
                "clear": Arg("flag", "No limit any more."),
            },
            any_of=("daily_limit", "clear"),
            one_of=("daily_limit", "clear"),
            derive=lambda values: {},
            facts=(*_PLACE, "daily_limit"),
        ),
        Verb(
            name="freeze",
            help="Let nothing leave a wallet.",
            about="Let nothing leave WALLET; it still receives.",
            schema=bodies.FREEZE,
            args={**_WALLET, **_REASON},
            facts=(*_PLACE, "reason"),
        ),
        Verb(
            name="unfreeze",
            help="End a freeze.",
            about="End the freeze of WALLET.",
            schema=bodies.UNFREEZE,
            args={**_WALLET, **_REASON},
            facts=(*_PLACE, "reason"),
        ),
        Verb(
            name="close",
            help="Close an empty wallet for good.",
            about="Close WALLET for good: nothing enters or leaves it any more. It must be empty.",
            schema=bodies.CLOSE,
            args=_WALLET,
            facts=_PLACE,
        ),
    ],
)

NOUNS: Final = {"wallet": WALLET}
