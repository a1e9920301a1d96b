"""Names of authors: the identity in use, contacts, and bindings that authors proved in a stream."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from veen.client.identity.contacts import ContactBook
from veen.client.identity.identity import Identity
from veen.core.objects.speaking import AuthorKey

if TYPE_CHECKING:
    from veen.client.read.reading import Entry

ME: Final = "me"
FORMER: Final = "former"


class Author(NamedTuple):
    """The author of an entry: `kind` is me, contact, former, claimed (by two contacts) or unknown.

    The name is None unless it is unambiguous. A former key is one whose binding had ended at the entry.
    """

    name: str | None
    kind: str


class AuthorNames:
    """Names by client key. A binding that an author proved in a stream outranks the claim of a card."""

    def __init__(
        self,
        identity: Identity,
        book: ContactBook,
        proven: Callable[[bytes], Sequence[AuthorKey]],
        of_worker: Callable[[bytes], bool] = lambda _: False,
        *,
        is_one_stream: bool = True,
    ) -> None:
        """Set up the lookup.

        `proven` returns what identities proved of a client key; `of_worker` returns True for a key of a worker of
        the identity, or of a command beside it. `is_one_stream`: all entries are of the stream where this was
        proven.
        """
        self._identity, self._book, self._proven, self._of_worker = identity, book, proven, of_worker
        self._is_one_stream = is_one_stream

    def __call__(self, entry: "Entry") -> Author:
        """Return the author of an entry, by the bindings in force at its place."""
        proofs = self._proven(entry.msg.client_id)
        place = (entry.epoch, entry.seq) if self._is_one_stream else None
        if not all(proof.covers(entry.ts, place) for proof in proofs):
            return Author(None, FORMER)
        return self._name(entry.msg.client_id, proofs)

    def owner_of(self, client_id: bytes) -> Author:
        """Return the owner of a client key, whether it is in use or not."""
        return self._name(client_id, self._proven(client_id))

    def _name(self, client_id: bytes, proofs: Sequence[AuthorKey]) -> Author:
        if self._identity.client_key_of(client_id) is not None or self._of_worker(client_id):
            return Author(self._identity.name, ME)
        if proofs:
            contact = self._book.by_identity(proofs[0].id_sign_pk)
            return Author(None, "unknown") if contact is None else Author(contact.name, "contact")
        claiming = self._book.find_claiming(client_id)
        if len(claiming) == 1:
            return Author(claiming[0].name, "contact")
        return Author(None, "claimed" if claiming else "unknown")
