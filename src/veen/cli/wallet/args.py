"""Options and arguments that the commands of `veen wallet` share: wallet, policy, streams."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.overlay_commands import HEX32, derived_streams
from veen.cli.shared.people import bytes_of, principal_of

if TYPE_CHECKING:
    from veen.client.identity.card import IdentityCard
    from veen.overlays.framework.nouns import Message
    from veen.overlays.wallet.ledger import LedgerFold
    from veen.overlays.wallet.policy import Owners

F = TypeVar("F", bound=Callable[..., Any])

_OWNED: Final = re.compile(r"(?P<owner>[^:]+):(?P<currency>[^:]+)")
_ID: Final = re.compile("[0-9a-fA-F]{64}")
_SKEW_SEC: Final = 300  # as `veen.overlays.wallet.policy` has it, which is not imported to parse arguments (D-175)
_MAX_CARDS_CHARS: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """Rules by which a ledger is folded: readers who shall agree use the same policy (WAL §8)."""

    stream: str | None  # one for all wallets; None: each wallet has its own (WAL §3.1)
    realm: str
    services: tuple[bytes, ...]
    bridges: tuple[bytes, ...]
    owner_cards: tuple[str, ...]  # veen1…; where wallets share a stream, these and the reader are all the owners
    max_skew_sec: int
    ts: int | None = None  # the time in a message; None: now

    def fold(self, session: CliSession) -> "LedgerFold":
        """On a shared stream a wallet obeys the keys of its owner alone: any writer could empty it otherwise."""
        from dataclasses import replace

        from veen.overlays.framework.fold import Mirrors
        from veen.overlays.wallet.ledger import LedgerFold
        from veen.overlays.wallet.policy import WalletPolicy

        policy = WalletPolicy.institutional(services=self.services) if self.services else WalletPolicy()
        policy = replace(policy, max_skew_sec=self.max_skew_sec)
        if self.stream is not None:
            policy = policy.on_shared_streams(self._owners(session))
        elif self.owner_cards:
            policy = replace(policy, owners=self._owners(session))
        return LedgerFold(mirrors=Mirrors.by(self.bridges), policy=policy)

    def _owners(self, session: CliSession) -> "Owners":
        """Return the keys by account: those of the reader's own identity, also retired ones, and those of the cards."""
        from veen.overlays.id.ids import ctx_id_of
        from veen.overlays.wallet.policy import owners_by

        identity = session.keystore.identity
        keys = {identity.id_sign_pk: {key.client_id for key in identity.client_keys}}
        for card in _cards(self.owner_cards):
            keys.setdefault(card.id_sign_pk, set()).add(card.client_id)
        return owners_by({ctx_id_of(principal_pk, self.realm_id): ids for principal_pk, ids in keys.items()})

    def streams(self, session: CliSession) -> list[str]:
        """Streams of wallets: a transfer touches two, so all of them are folded together (D-100)."""
        return derived_streams(session) if self.stream is None else [self.stream]

    def stream_of(self, message: "Message") -> str:
        from veen.overlays.wallet.bodies import wallet_stream

        return f"hex:{wallet_stream(message.values['wallet_id']).hex()}" if self.stream is None else self.stream

    def value(self, session: CliSession, kind: str, text: Any) -> Any:
        """Return the value of a kind of `veen.overlays.wallet.nouns`."""
        match kind:
            case "wallet":
                return wallet_of(session, self, text)
            case "owner":
                return owner_of(session, self, text)
            case "realm":
                return self.realm_id
            case _:
                return int(time.time()) if self.ts is None else self.ts

    @property
    def realm_id(self) -> bytes:
        from veen.core.objects.policies import realm_id_of

        return realm_id_of(self.realm)


def ledger_options(command: F) -> F:
    """Give a command its `ledgers`."""

    @click.option("--stream", type=STREAM, help="One stream for all wallets, instead of one for each.")
    @click.option("--realm", default="default", show_default=True, help="The realm of owners given as OWNER:CURRENCY.")
    @click.option(
        "--service",
        "services",
        type=HEX32,
        multiple=True,
        help="A key of the institution: only these deposit, adjust, limit and freeze. Repeatable; default: all who may "
        "change the wallet do.",
    )
    @click.option(
        "--bridge", "bridges", type=HEX32, multiple=True, help="A key of a bridge, whose copies count once. Repeatable."
    )
    @click.option(
        "--owner-card",
        "owner_cards",
        metavar="CARD",
        multiple=True,
        help="With --stream: an owner of a wallet, by card (veen1…), or @FILE with a card in each line. Only keys on "
        "cards, your own and --service move money. Repeatable.",
    )
    @click.option(
        "--max-skew",
        "max_skew_sec",
        type=click.IntRange(min=0),
        default=_SKEW_SEC,
        show_default=True,
        help="Seconds that the time in a message may be off the time of the hub; beyond that it has no effect.",
    )
    @wraps(command)
    def run(
        *args: Any,
        stream: str | None,
        realm: str,
        services: tuple[bytes, ...],
        bridges: tuple[bytes, ...],
        owner_cards: tuple[str, ...],
        max_skew_sec: int,
        **kwargs: Any,
    ) -> Any:
        ledgers = Ledgers(
            stream=stream,
            realm=realm,
            services=services,
            bridges=bridges,
            owner_cards=owner_cards,
            max_skew_sec=max_skew_sec,
        )
        return command(*args, ledgers=ledgers, **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def _cards(texts: tuple[str, ...]) -> "Iterator[IdentityCard]":
    from veen.client.identity.card import IdentityCard

    for text in texts:
        if text.startswith("@"):
            with Path(text[1:]).open(encoding="utf-8", errors="replace") as file:
                lines = file.read(_MAX_CARDS_CHARS + 1)
            if len(lines) > _MAX_CARDS_CHARS:
                raise click.UsageError(f"{text[1:]}: more than {_MAX_CARDS_CHARS} characters of cards")
            yield from (IdentityCard.from_text(line.strip()) for line in lines.splitlines() if line.strip())
        else:
            yield IdentityCard.from_text(text)


def owner_of(session: CliSession, ledgers: Ledgers, text: str | None) -> bytes:
    """Return a ctx_id: of an owner given as `me`, as a card or as a contact, or the id itself."""
    from veen.overlays.id.ids import ctx_id_of

    return bytes_of(text) or ctx_id_of(principal_of(session, text), ledgers.realm_id)


def wallet_of(session: CliSession, ledgers: Ledgers, text: str) -> bytes:
    """Return a wallet_id, from 64 hex digits or OWNER:CURRENCY."""
    from veen.cli.shared.overlay_commands import drafted
    from veen.overlays.wallet.bodies import wallet_id_of

    if _ID.fullmatch(text):
        return bytes.fromhex(text)
    match = _OWNED.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is no wallet: 64 hex digits, or OWNER:CURRENCY such as me:EUR")
    owner = owner_of(session, ledgers, match["owner"])
    return drafted(lambda: wallet_id_of(ledgers.realm_id, owner, match["currency"]))
