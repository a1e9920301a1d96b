"""Contacts: identity cards under names that the user chose, with the client keys of each and her prekey.

A card is a snapshot: its client key rotates. Newer cards of the same identity, and cards that authors announce in a
stream (`veen.card.v1`), add client keys to a contact; the identity is its id_sign_pk and never changes. A card can name
any client key, also somebody else's: a client key that two contacts claim belongs to neither.

Names of authors: the identity in use, contacts, and bindings that authors proved in a stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Self

from veen.client.errors import CardInvalid, ContactExists, ContactUnknown, LocalError
from veen.client.home import Home
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, check_name
from veen.core.errors import FormatError
from veen.core.objects.captoken import CapToken
from veen.core.objects.card import Prekey
from veen.core.objects.speaking import AuthorKey
from veen.core.wire import Bytes32, Length, Map, Part, Uint
from veen.io.local import Fs
from veen.storage.scan import read_file

if TYPE_CHECKING:
    from veen.client.read.reading import Entry

MAX_CONTACTS: Final = 65_536
_MAX_KEYS: Final = 4_096
_MAX_TOKENS: Final = 256
_FILE: Final = "book.cbor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact(Part, kind="contact"):
    """One person. `client_ids` are those on her cards, the newest last; `tokens` those that this identity issued to
    her."""

    name: str
    card: IdentityCard
    client_ids: Annotated[tuple[Bytes32, ...], Length(0, _MAX_KEYS)]
    added_at: Uint
    prekey: Prekey | None = None
    tokens: Annotated[tuple[CapToken, ...], Length(0, _MAX_TOKENS)] = ()

    @property
    def id_sign_pk(self) -> bytes:
        return self.card.id_sign_pk

    def with_card(self, card: IdentityCard) -> Self:
        """Return the contact with a newer card of the same identity."""
        keys = tuple(key for key in self.client_ids if key != card.client_id)
        return replace(self, card=card, client_ids=(*keys, card.client_id)[-_MAX_KEYS:])

    def with_prekey(self, prekey: Prekey) -> Self:
        """Return the contact with the prekey that lasts longer."""
        if self.prekey is not None and self.prekey.expires_at >= prekey.expires_at:
            return self
        return replace(self, prekey=prekey)

    def with_token(self, token: CapToken) -> Self:
        return replace(self, tokens=(*(other for other in self.tokens if other != token), token)[-_MAX_TOKENS:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactBook(Map, kind="contact book"):
    """All contacts, by name. A value."""

    contacts: Annotated[tuple[Contact, ...], Length(0, MAX_CONTACTS)] = ()

    def get(self, name: str) -> Contact:
        for contact in self.contacts:
            if contact.name == name:
                return contact
        raise ContactUnknown(name)

    def by_identity(self, id_sign_pk: bytes) -> Contact | None:
        return next((contact for contact in self.contacts if contact.id_sign_pk == id_sign_pk), None)

    def find_claiming(self, client_id: bytes) -> tuple[Contact, ...]:
        """Return the contacts whose cards name a client key: with more than one, none of them counts."""
        return tuple(contact for contact in self.contacts if client_id in contact.client_ids)

    def with_card(self, name: str, card: IdentityCard, now: int) -> Self:
        """Return the book with a new contact, or a newer card of one. Raise ContactExists if the name or the
        identity is taken."""
        check_name(name)
        card.verify()
        same = self.by_identity(card.id_sign_pk)
        if same is not None and same.name != name:
            raise ContactExists(f"this identity is the contact {same.name!r}")
        other = next((contact for contact in self.contacts if contact.name == name), None)
        if other is not None and other.id_sign_pk != card.id_sign_pk:
            raise ContactExists(f"{name!r} is another identity, with the card id {other.card.card_id}")
        if same is not None:
            return self.with_contact(same.with_card(card))
        contact = Contact(name=name, card=card, client_ids=(card.client_id,), added_at=now)
        return replace(self, contacts=tuple(sorted((*self.contacts, contact), key=lambda entry: entry.name)))

    def with_contact(self, contact: Contact) -> Self:
        """Return the book with this contact in place of the one with its identity."""
        return replace(
            self,
            contacts=tuple(contact if old.id_sign_pk == contact.id_sign_pk else old for old in self.contacts),
        )

    def rename(self, name: str, new_name: str) -> Self:
        contact = self.get(name)
        if any(other.name == new_name for other in self.contacts):
            raise ContactExists(f"there is a contact {new_name!r}")
        renamed = replace(contact, name=check_name(new_name))
        others = (other for other in self.contacts if other is not contact)
        return replace(self, contacts=tuple(sorted((*others, renamed), key=lambda entry: entry.name)))

    def without(self, name: str) -> Self:
        contact = self.get(name)
        return replace(self, contacts=tuple(other for other in self.contacts if other is not contact))


class ContactStore:
    """The contacts of a home, in one file that only its owner can access."""

    def __init__(self, home: Home) -> None:
        self._fs: Fs = home.contacts_fs()

    def load(self) -> ContactBook:
        """Read the contacts and check every card. Raise LocalError if the file was altered."""
        if not self._fs.exists(_FILE):
            return ContactBook()
        try:
            book = ContactBook.from_bytes(read_file(self._fs, _FILE))
            for contact in book.contacts:
                contact.card.verify()
        except (FormatError, CardInvalid) as exc:
            raise LocalError(f"contacts/{_FILE}: the file is damaged: {exc}") from exc
        return book

    def change(self, change: Callable[[ContactBook], ContactBook]) -> ContactBook:
        """Read, change and write the contacts; write nothing if nothing changed."""
        self._fs.make_dir("")
        with self._fs.lock():
            before = self.load()
            after = change(before)
            if after != before:
                self._fs.replace(_FILE, after.to_bytes(), private=True)
            return after


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
