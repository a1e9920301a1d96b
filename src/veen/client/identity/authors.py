"""Whose key wrote an entry: the identity in use, contacts, and what authors proved in a stream."""

from collections.abc import Callable
from typing import Final, NamedTuple

from veen.client.identity.contacts import ContactBook
from veen.client.identity.identity import Identity

ME: Final = "me"


class Author(NamedTuple):
    """Who wrote an entry: `kind` is me, contact, claimed (by two contacts) or unknown; a name only if one is meant."""

    name: str | None
    kind: str


class AuthorNames:
    """Names by client key. What an author proved in a stream counts before what a card claims."""

    def __init__(
        self,
        identity: Identity,
        book: ContactBook,
        proven: Callable[[bytes], bytes | None],
        of_worker: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """`proven` gives the id_sign_pk of the identity that proved to have a client key, if one did; `of_worker` says
        whether a key is that of a worker of the identity, or of a command beside it."""
        self._identity, self._book, self._proven, self._of_worker = identity, book, proven, of_worker

    def __call__(self, client_id: bytes) -> Author:
        if self._identity.client_key_of(client_id) is not None or self._of_worker(client_id):
            return Author(self._identity.name, ME)
        if (id_sign_pk := self._proven(client_id)) is not None:
            contact = self._book.by_identity(id_sign_pk)
            return Author(None, "unknown") if contact is None else Author(contact.name, "contact")
        claiming = self._book.claiming(client_id)
        if len(claiming) == 1:
            return Author(claiming[0].name, "contact")
        return Author(None, "claimed" if claiming else "unknown")
