"""What the commands of `veen wallet` share: which wallet, under which policy, on which streams."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.clictx import Session
from veen.cli.names import STREAM
from veen.cli.overlaycmd import derived_streams
from veen.cli.overlayvalues import HEX32

if TYPE_CHECKING:
    from veen.overlays.wallet.ledger import LedgerFold

__all__ = ["Ledgers", "ledger_options", "owner_of", "wallet_of"]

F = TypeVar("F", bound=Callable[..., Any])

_OWNED: Final = re.compile(r"(?P<owner>[^:]+):(?P<currency>[^:]+)")
_ID: Final = re.compile("[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """How a ledger is folded: readers who shall agree use the same policy (WAL §8)."""

    stream: str | None  # one for all wallets; None: each wallet has its own (WAL §3.1)
    realm: str
    services: tuple[bytes, ...]
    bridges: tuple[bytes, ...]

    def fold(self) -> "LedgerFold":
        from dataclasses import replace

        from veen.overlays.dedup import Mirrors
        from veen.overlays.wallet.ledger import LedgerFold
        from veen.overlays.wallet.policy import Policy

        policy = Policy.institutional(services=self.services) if self.services else Policy()
        policy = replace(policy, own_streams=self.stream is None)
        return LedgerFold(mirrors=Mirrors.by(self.bridges), policy=policy)

    def streams(self, session: Session) -> list[str]:
        """Where wallets are: a transfer touches two, so all of them are folded together (D-100)."""
        return derived_streams(session) if self.stream is None else [self.stream]

    def stream_of(self, wallet_id: bytes) -> str:
        from veen.overlays.wallet.ids import wallet_stream

        return f"hex:{wallet_stream(wallet_id).hex()}" if self.stream is None else self.stream

    @property
    def realm_id(self) -> bytes:
        from veen.core.policies import realm_id_of

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
        help="A key of the institution: only these deposit, adjust, limit and freeze. Repeatable; default: all do.",
    )
    @click.option(
        "--bridge", "bridges", type=HEX32, multiple=True, help="A key of a bridge, whose copies count once. Repeatable."
    )
    @wraps(command)
    def run(
        *args: Any,
        stream: str | None,
        realm: str,
        services: tuple[bytes, ...],
        bridges: tuple[bytes, ...],
        **kwargs: Any,
    ) -> Any:
        ledgers = Ledgers(stream=stream, realm=realm, services=services, bridges=bridges)
        return command(*args, ledgers=ledgers, **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def owner_of(session: Session, ledgers: Ledgers, text: str | None) -> bytes:
    """A ctx_id: of an owner given as `me`, as a card (veen1…), or as the id itself."""
    from veen.overlays.id.ids import ctx_id_of

    if text is not None and _ID.fullmatch(text):
        return bytes.fromhex(text)
    return ctx_id_of(_principal(session, text), ledgers.realm_id)


def _principal(session: Session, text: str | None) -> bytes:
    if text is None or text == "me":
        return session.keystore.identity.id_sign_pk
    from veen.client.card import IdentityCard

    return IdentityCard.from_text(text).id_sign_pk


def wallet_of(session: Session, ledgers: Ledgers, text: str) -> bytes:
    """A wallet_id: 64 hex digits, or OWNER:CURRENCY."""
    from veen.cli.overlaycmd import drafted
    from veen.overlays.wallet.ids import wallet_id_of

    if _ID.fullmatch(text):
        return bytes.fromhex(text)
    found = _OWNED.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{text!r} is no wallet: 64 hex digits, or OWNER:CURRENCY such as me:EUR")
    owner = owner_of(session, ledgers, found["owner"])
    return drafted(lambda: wallet_id_of(ledgers.realm_id, owner, found["currency"]))
