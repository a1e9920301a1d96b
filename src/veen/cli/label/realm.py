"""What the commands about the administration of a realm share: which realm, and on which streams."""

from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.output import Fail
from veen.cli.shared.overlay_values import HEX32
from veen.cli.together.common import with_authority

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession

F = TypeVar("F", bound=Callable[..., Any])

MAKE_KEYS: Final = click.option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the realm's stream, if there are none."
)


class OwnerKeys(Collection[bytes]):
    """The client keys of the owner of a stream: her own, if she is the user; those on her cards; those that she proved.

    `in` also asks what the stream proved meanwhile, for a command that runs on.
    """

    def __init__(self, session: "CliSession", stream: str, owner_pk: bytes) -> None:
        from veen.cli.shared.people import contact_store
        from veen.client.identity.workers import worker_client_ids

        self._client, self._stream = session.client(), stream
        identity = session.keystore.identity
        state = self._client.run(lambda client: client.key_state(stream))
        self._owners = frozenset((owner_pk,) if state is None else (owner_pk, state.owner))
        ids = {row.client_id for row in state.authors if row.id_sign_pk in self._owners} if state else set()
        if identity.id_sign_pk in self._owners:
            ids |= {key.client_id for key in identity.client_keys} | worker_client_ids(session.home, identity)
            ids.add(self._client.client_id)
        contact = contact_store(session).load().by_identity(owner_pk)
        self._ids = frozenset(ids | set(() if contact is None else contact.client_ids))

    def __contains__(self, client_id: object) -> bool:
        if client_id in self._ids:
            return True
        return isinstance(client_id, bytes) and self._client.author(self._stream, client_id) in self._owners

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class AdminRealm:
    """A realm, and who may speak for it (D-186)."""

    def __init__(self, name: str, emitters: tuple[bytes, ...], any_emitter: bool = False) -> None:
        self.name, self._emitters, self._any_emitter = name, emitters, any_emitter

    @property
    def realm_id(self) -> bytes:
        from veen.core.objects.policies import realm_id_of

        return realm_id_of(self.name)

    @property
    def has_one_rule(self) -> bool:
        """True if the same emitters count on all streams of the realm, whoever owns them."""
        return self._any_emitter or bool(self._emitters)

    def emitters(self, session: "CliSession", stream: str) -> "Collection[bytes] | None":
        """Return the client keys whose records count on a stream of the realm; None with --any-emitter.

        Without --emitter these are the keys of the stream's owner. Fail if nobody knows who that is.
        """
        from veen.client.errors import UnknownStream

        if self._any_emitter:
            return None
        if self._emitters:
            return self._emitters
        try:
            owner_pk = session.keystore.secrets.keyring.owner_of(stream)
        except UnknownStream:
            return ()  # whoever reads the stream is told that there is no key
        if owner_pk is None:
            raise Fail(
                "E.LOCAL.OWNER",
                f"{stream}: its owner is not known",
                "without named emitters only records of the owner count",
                f"veen keys owner {stream} NAME, or name who may speak for the realm: --emitter CLIENT_ID",
            )
        return OwnerKeys(session, stream, owner_pk)

    def announce(self, session: "CliSession", stream: str) -> None:
        """Let other readers know that the client key in use is that of the owner, so that her record counts there."""
        from veen.client.errors import UnknownStream
        from veen.client.generations import owning

        client, identity = session.client(), session.keystore.identity
        try:
            if client.keyring.owner_of(stream) != identity.id_sign_pk:
                return
        except UnknownStream:
            return
        state = client.run(lambda client: client.key_state(stream))
        if state is None or state.author(client.client_id) is None:
            with_authority(session, stream, lambda client: owning.announce_card(client, identity, stream))

    def class_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).label_class.hex()}"

    def authority_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).fed_admin.hex()}"

    def revocation_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).revocation.hex()}"

    def schema_stream(self) -> str:
        from veen.overlays.federation.realm import admin_streams

        return f"hex:{admin_streams(self.realm_id).schema_meta.hex()}"


def realm_options(command: F) -> F:
    """Give a command its `realm`."""

    @click.option("--realm", "realm_name", default="default", show_default=True, help="The realm.")
    @click.option(
        "--emitter",
        "emitters",
        type=HEX32,
        multiple=True,
        help="A client_id that may speak for the realm. Repeatable. Default: the owner of the stream.",
    )
    @click.option("--any-emitter", is_flag=True, help="Count the records of everyone who may write to the stream.")
    @wraps(command)
    def run(*args: Any, realm_name: str, emitters: tuple[bytes, ...], any_emitter: bool, **kwargs: Any) -> Any:
        if emitters and any_emitter:
            raise click.UsageError("give one of --emitter and --any-emitter")
        return command(*args, realm=AdminRealm(realm_name, emitters, any_emitter), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
