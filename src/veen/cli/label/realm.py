"""Options that the commands about the administration of a realm share: the realm, its streams and emitters."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.people.contacts import with_authority
from veen.cli.shared.output import Fail

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.core.objects.speaking import AuthorKey

F = TypeVar("F", bound=Callable[..., Any])

MAKE_KEYS: Final = click.option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the realm's stream if there are none."
)


class EmitterKeys(Mapping[bytes, "AuthorKey | None"]):
    """Client keys of identities that may speak for a realm: the user's own, those on cards, and those proven there.

    A lookup also asks what the stream proved meanwhile, for a command that runs on.
    """

    def __init__(self, session: "CliSession", stream: str, identities: Collection[bytes], *, has_keys: bool) -> None:
        """Store the identities. With `has_keys` they may be client keys, valid unless an identity proved them."""
        from veen.cli.shared.people import contact_store
        from veen.client.identity.workers import worker_client_ids

        self._client, self._stream, self._identities = session.client(), stream, frozenset(identities)
        identity, contacts = session.keystore.identity, contact_store(session).load()
        ids = set(identities if has_keys else ())
        if identity.id_sign_pk in identities:
            ids |= {key.client_id for key in identity.client_keys} | worker_client_ids(session.home, identity)
            ids.add(self._client.client_id)
        for contact in filter(None, map(contacts.by_identity, identities)):
            ids.update(contact.client_ids)
        state = self._client.run(lambda client: client.key_state(stream))
        self._ids = ids if state is None else ids | state.keys_of(self._identities).keys()

    def __getitem__(self, client_id: bytes) -> "AuthorKey | None":
        proof = self._client.author(self._stream, client_id)
        if client_id in self._ids if proof is None else not self._identities.isdisjoint((client_id, proof.id_sign_pk)):
            return proof
        raise KeyError(client_id)

    def __iter__(self) -> Iterator[bytes]:
        return (client_id for client_id in self._ids if client_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class AdminRealm:
    """A realm, and the identities that may write its records (D-186)."""

    def __init__(self, name: str, emitters: tuple[str, ...] = (), any_emitter: bool = False) -> None:
        self.name, self._emitters, self.any_emitter = name, emitters, any_emitter

    @property
    def realm_id(self) -> bytes:
        from veen.core.objects.policies import realm_id_of

        return realm_id_of(self.name)

    def rule(self, session: "CliSession", *streams: str) -> dict[str, Any]:
        """Return the options of a fold: the emitters on streams of the realm."""
        from veen.client.identity.keyring import StreamRef

        if self.any_emitter:
            return {"any_emitter": True}
        return {"emitters": {StreamRef.parse(stream).stream_id: self.emitters(session, stream) for stream in streams}}

    def emitters(self, session: "CliSession", stream: str) -> "Mapping[bytes, AuthorKey | None]":
        """Return the client keys whose records count on a stream of the realm.

        Without --emitter these are the keys of the stream's owner. Fail if nobody knows who that is.
        """
        from veen.cli.shared.people import principal_of
        from veen.client.errors import UnknownStream

        try:
            owner_pk = session.keystore.secrets.keyring.owner_of(stream)
        except UnknownStream:
            return {}  # whoever reads the stream is told that there is no key
        if self._emitters:
            named = {principal_of(session, emitter) for emitter in self._emitters}
            return EmitterKeys(session, stream, named, has_keys=True)
        if owner_pk is None:
            raise Fail(
                "E.LOCAL.OWNER",
                f"the owner of {stream} is unknown",
                "without --emitter only records of the owner are accepted",
                f"veen keys owner {stream} NAME, or name the identities that may write its records: --emitter IDENTITY",
            )
        state = session.client().run(lambda client: client.key_state(stream))
        owners = {owner_pk} if state is None else {owner_pk, state.owner}
        return EmitterKeys(session, stream, owners, has_keys=False)

    def announce(self, session: "CliSession", stream: str) -> None:
        """Prove that the client key belongs to the owner, or to a named emitter, so that the record is valid."""
        from veen.client.errors import UnknownStream
        from veen.client.generations import owning

        client, identity = session.client(), session.keystore.identity
        try:
            owner_pk = client.keyring.owner_of(stream)
            if owner_pk is None or (owner_pk != identity.id_sign_pk and not self._emitters):
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
    """Add the options of `realm` to a command."""

    @click.option("--realm", "realm_name", default="default", show_default=True, help="Name of the realm.")
    @click.option(
        "--emitter",
        "emitters",
        metavar="IDENTITY",
        multiple=True,
        help="Identity that may write records of the realm: `me`, a contact, a card, or a key in hex. Repeatable. "
        "Default: the owner of the stream.",
    )
    @click.option("--any-emitter", is_flag=True, help="Accept the records of everyone who may write to the stream.")
    @wraps(command)
    def run(*args: Any, realm_name: str, emitters: tuple[str, ...], any_emitter: bool, **kwargs: Any) -> Any:
        if emitters and any_emitter:
            raise click.UsageError("give one of --emitter and --any-emitter")
        return command(*args, realm=AdminRealm(realm_name, emitters, any_emitter), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
