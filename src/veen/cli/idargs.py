"""What the commands of the identity overlay share: which realm, whose keys, on which streams, and how they write."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.clictx import Session, client_options
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import derived_streams, make_keys, send_draft, tell_counted, write_options
from veen.cli.overlayvalues import json_value
from veen.cli.values import MOMENT

if TYPE_CHECKING:
    from veen.cli.asof import View
    from veen.cli.folding import Folded
    from veen.overlays.id.drafts import Addressed
    from veen.overlays.id.fold import IdFold

__all__ = ["EXPIRES", "NAME", "REASON", "Realm", "ctx_of", "folded_ids", "id_options", "id_write", "json_object", "now"]
__all__ += ["org_of", "principal_of", "send_addressed"]

F = TypeVar("F", bound=Callable[..., Any])

REASON: Final = click.option("--reason", help="Why: it stands in the log.")
EXPIRES: Final = click.option("--expires", type=MOMENT, help="Until when: a time, or +30d.")
NAME: Final = click.option("--display-name", help="What people read; it identifies nobody.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Realm:
    """A realm, and the streams that hold its identities."""

    name: str
    stream: str | None  # one for all identities; None: each has its own (ID §4.1)

    @property
    def id(self) -> bytes:
        from veen.core.policies import realm_id_of

        return realm_id_of(self.name)

    def fold(self) -> "IdFold":
        from veen.client.keyring import StreamRef
        from veen.overlays.id.fold import IdFold

        merged = None if self.stream is None else StreamRef.parse(self.stream).stream_id
        return IdFold(merged=() if merged is None else [merged])

    def streams(self, session: Session) -> list[str]:
        return derived_streams(session) if self.stream is None else [self.stream]

    def stream_of(self, message: "Addressed") -> str:
        return f"hex:{message.stream_id.hex()}" if self.stream is None else self.stream


def id_options(command: F) -> F:
    """Give a command its `realm`."""

    @click.option("--realm", "name_of_realm", default="default", show_default=True, help="The realm of accounts.")
    @click.option("--stream", type=STREAM, help="One stream for all identities, instead of one for each.")
    @wraps(command)
    def run(*args: Any, name_of_realm: str, stream: str | None, **kwargs: Any) -> Any:
        return command(*args, realm=Realm(name=name_of_realm, stream=stream), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def id_write(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that send."""
    make = click.option("--make-keys", "keys", is_flag=True, help="Make the keys of the stream, if there are none.")
    for option in (client_options, output_options, write_options, make, id_options):
        command = option(command)
    return command


def now() -> int:
    """Of this machine: messages of ID carry the time of their writer."""
    return int(time.time())


def json_object(text: str | None) -> dict[str, Any] | None:
    """An option that is a JSON object."""
    if text is None:
        return None
    found = json_value(text)
    if type(found) is not dict:
        raise click.UsageError(f"{text!r} is no JSON object")
    return found


def principal_of(session: Session, text: str | None) -> bytes:
    """A principal_pk: your own, or that of a card (veen1…) or of 64 hex digits."""
    if text is None or text == "me":
        return session.keystore.identity.id_sign_pk
    if text.startswith("veen1"):
        from veen.client.card import IdentityCard

        return IdentityCard.from_text(text).id_sign_pk
    from veen.cli.files import hex32

    return hex32(text)


def ctx_of(session: Session, realm: Realm, text: str | None) -> bytes:
    """A ctx_id: of a principal given as `me` or as a card, or the id itself."""
    from veen.cli.files import hex32
    from veen.overlays.id.ids import ctx_id_of

    if text is None or text == "me" or text.startswith("veen1"):
        return ctx_id_of(principal_of(session, text), realm.id)
    return hex32(text)


def org_of(session: Session, text: str | None) -> bytes:
    """An org_id: that of your own key, of a card, or the id itself."""
    from veen.cli.files import hex32
    from veen.overlays.id.ids import org_id_of

    if text is None or text == "me" or text.startswith("veen1"):
        return org_id_of(principal_of(session, text))
    return hex32(text)


def folded_ids(session: Session, realm: Realm, view: "View") -> "Folded":
    """Who is who, from every stream of identities that can be read."""
    from veen.cli.overlaycmd import state_of

    return state_of(session, realm.fold(), realm.streams(session), view)


def send_addressed(
    output: Output,
    session: Session,
    realm: Realm,
    message: "Addressed",
    facts: Mapping[str, Any],
    *,
    keys: bool,
    cap: Path | None,
) -> None:
    """Send a message of the overlay to the stream it belongs into, and see whether it counts."""
    stream = realm.stream_of(message)
    if keys:
        make_keys(session, stream)
    sent = send_draft(session, stream, message.draft, cap)
    tell_counted(output, session, sent, {**facts, "stream": stream}, realm.fold(), [stream])
