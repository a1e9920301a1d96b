"""Options and arguments that the commands of the identity overlay share: realm, keys, streams."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.overlay_commands import derived_streams
from veen.cli.shared.people import bytes_of, principal_of

if TYPE_CHECKING:
    from veen.cli.shared.as_of import View
    from veen.cli.shared.folding import Folded
    from veen.overlays.framework.nouns import Message
    from veen.overlays.id.fold import IdFold

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Realm:
    """A realm, and the streams that hold its identities."""

    name: str
    stream: str | None  # one for all identities; None: each has its own (ID §4.1)

    @property
    def id(self) -> bytes:
        from veen.core.objects.policies import realm_id_of

        return realm_id_of(self.name)

    def fold(self, session: CliSession | None = None) -> "IdFold":
        from veen.client.identity.keyring import StreamRef
        from veen.overlays.id.fold import IdFold

        merged = None if self.stream is None else StreamRef.parse(self.stream).stream_id
        return IdFold(merged=() if merged is None else [merged])

    def streams(self, session: CliSession) -> list[str]:
        return derived_streams(session) if self.stream is None else [self.stream]

    def stream_of(self, message: "Message") -> str:
        from veen.overlays.id.drafts import stream_of

        return f"hex:{stream_of(message.body).hex()}" if self.stream is None else self.stream

    def value(self, session: CliSession, kind: str, text: str | None) -> Any:
        match kind:
            case "account":
                return ctx_of(session, self, text)
            case "org":
                from veen.overlays.id.ids import org_id_of

                return bytes_of(text) or org_id_of(principal_of(session, text))
            case "card":
                from veen.client.identity.card import IdentityCard

                return session.keystore.identity.card() if text is None else IdentityCard.from_text(text)
            case _:
                return self.id


def id_options(command: F) -> F:
    """Give a command its `realm`."""

    @click.option("--realm", "name_of_realm", default="default", show_default=True, help="The realm of accounts.")
    @click.option("--stream", type=STREAM, help="One stream for all identities, instead of one for each.")
    @wraps(command)
    def run(*args: Any, name_of_realm: str, stream: str | None, **kwargs: Any) -> Any:
        return command(*args, realm=Realm(name=name_of_realm, stream=stream), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def ctx_of(session: CliSession, realm: Realm, text: str | None) -> bytes:
    """Return a ctx_id: of a principal given as `me`, a card or a contact, or the id itself."""
    from veen.overlays.id.ids import ctx_id_of

    return bytes_of(text) or ctx_id_of(principal_of(session, text), realm.id)


def folded_ids(session: CliSession, realm: Realm, view: "View") -> "Folded":
    """Identities, from every stream of identities that can be read."""
    from veen.cli.shared.overlay_commands import state_of

    return state_of(session, realm.fold(), realm.streams(session), view)
