"""Names of people and authors of entries: contacts, the identity in use, and proven keys.

Identities as people write them, and the names that lists show in place of their keys.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from veen.cli.shared.command import CliSession
from veen.cli.shared.output import Mode

if TYPE_CHECKING:
    from re import Pattern

    from veen.client.identity.card import IdentityCard
    from veen.client.identity.contacts import Author, Contact, ContactBook, ContactStore
    from veen.client.read.reading import Entry
    from veen.core.objects.speaking import AuthorKey


def contact_store(session: "CliSession") -> "ContactStore":
    from veen.client.identity.contacts import ContactStore

    return ContactStore(session.home)


ME: Final = "me"  # as veen.client.identity.contacts has it; not imported, as help must stay fast


def card_of(session: "CliSession", text: str) -> "tuple[IdentityCard, Contact | None]":
    """Return the card of a contact by name, or one given as text (veen1…)."""
    from veen.client.identity.card import IdentityCard

    book = contact_store(session).load()
    if text.startswith("veen1"):
        card = IdentityCard.from_text(text)
        return card, book.by_identity(card.id_sign_pk)
    contact = book.get(text)
    return contact.card, contact


class Authors:
    """Names of authors of one stream, for a command."""

    def __init__(self, session: "CliSession", stream: str | bytes | None) -> None:
        """Set the stream; None for an inbox, where authors are known by their proofs in any followed stream."""
        self._session = session
        followed = {keys.stream_id for keys in session.keystore.secrets.keyring.entries if keys.owner_pk is not None}
        self._streams: tuple[str | bytes, ...] = tuple(sorted(followed)) if stream is None else (stream,)
        from veen.client.identity.contacts import AuthorNames

        self._identity = session.keystore.identity
        self._book: ContactBook = contact_store(session).load()
        self._names = AuthorNames(
            self._identity, self._book, self._prove, self._of_worker, is_one_stream=stream is not None
        )
        self._workers: set[bytes] = set()  # client keys of workers of the identity, as they were last looked up
        self._strangers: set[bytes] = set()

    def __call__(self, entry: "Entry") -> "Author":
        return self._names(entry)

    def owner_of(self, client_id: bytes) -> "Author":
        """Return the owner of a client key, whether it is in use or not."""
        return self._names.owner_of(client_id)

    def _of_worker(self, client_id: bytes) -> bool:
        """Return True if it is a key of a worker process of ours, or of a command beside it."""
        if client_id not in self._strangers | self._workers:
            from veen.client.identity.workers import worker_client_ids

            self._workers = worker_client_ids(self._session.home, self._identity)
            if client_id not in self._workers:
                self._strangers.add(client_id)
        return client_id in self._workers

    def _prove(self, client_id: bytes) -> "list[AuthorKey]":
        from veen.client.errors import UnknownStream

        proofs = []
        for stream in self._streams:
            with contextlib.suppress(UnknownStream):  # a label without keys
                if (proof := self._session.client().author(stream, client_id)) is not None:
                    proofs.append(proof)
        return proofs

    def test(self, name: str) -> "Callable[[Entry], bool]":
        """Return a test of entries by a name, by `me`, or by a key in hex."""
        try:
            key = bytes.fromhex(name)
        except ValueError:
            key = b""
        if len(key) == 32:
            return lambda entry: entry.msg.client_id == key
        if name in (ME, self._identity.name):
            return lambda entry: self(entry).kind == ME
        self._book.get(name)  # or say that there is none
        return lambda entry: self(entry) == (name, "contact")


def pattern_of(text: str | None) -> "Pattern[str] | None":
    """Compile a regular expression. Text without special characters matches itself."""
    import re

    try:
        return None if text is None else re.compile(text)
    except re.error as exc:
        raise click.UsageError(f"--grep {text!r}: {exc}; put a backslash before ( [ * + ? .") from exc


def filter_entries(
    entries: "Iterator[Entry]", authors: Authors, author: str | None, grep: str | None
) -> "Iterator[tuple[Entry, dict[str, Any]]]":
    """Yield the selected entries, each with its author. All entries are verified on the way."""
    return _select(entries, authors, None if author is None else authors.test(author), pattern_of(grep))


def _select(
    entries: "Iterator[Entry]",
    authors: Authors,
    wanted: "Callable[[Entry], bool] | None",
    pattern: "Pattern[str] | None",
) -> "Iterator[tuple[Entry, dict[str, Any]]]":
    for entry in entries:
        if wanted is not None and not wanted(entry):
            continue
        if pattern is not None and (entry.event is None or not pattern.search(entry.body.decode(errors="replace"))):
            continue
        who = authors(entry)
        yield entry, {"author": who.name, "author_kind": who.kind}


KEY_OF_MINE: Final = "key:me"
KEY_BYTES: Final = 32
_SHORT: Final = 4


def card_of_text(session: CliSession, text: str) -> "IdentityCard | None":
    """Return the card that a text is or names: a card (veen1…) or a contact; None for anything else."""
    if text.startswith("veen1"):
        from veen.client.identity.card import IdentityCard

        return IdentityCard.from_text(text)
    if bytes_of(text) is not None:
        return None
    return contact_store(session).load().get(text).card


def principal_of(session: CliSession, text: str | None) -> bytes:
    """Return the key of an identity: yours (`me`, or None), that of a card or contact, or 64 hex digits.

    `key:me` is the client key that signs your messages at present.
    """
    if text is None or text == ME:
        return session.keystore.identity.id_sign_pk
    if text == KEY_OF_MINE:
        return session.keystore.identity.client_id
    card = card_of_text(session, text)
    if card is not None:
        return card.id_sign_pk
    from veen.cli.shared.files import hex32

    return hex32(text)


def bytes_of(text: str | None) -> bytes | None:
    """Return the key or id that a text spells in 64 hex digits, or None."""
    if text is None:
        return None
    try:
        data = bytes.fromhex(text.removeprefix("ed25519:"))
    except ValueError:
        return None
    return data if len(data) == KEY_BYTES else None


class Meaning(NamedTuple):
    """A name of a key or id, and its kind."""

    name: str
    kind: str  # identity, client key, seal key, account or wallet account


class KnownKeys:
    """Names of keys: those of the identity in use and of contacts, and of accounts that follow from them."""

    def __init__(self, session: CliSession, more: Mapping[bytes, str] | None = None) -> None:
        """`more` are names of other ids, for the cells of one table."""
        self._session, self._more = session, more or {}

    def meanings(self, key: bytes) -> Sequence[Meaning]:
        """Return all that a key is known as. A client key that two contacts claim has two meanings.

        A card proves its identity and no other key: what it only claims counts for no key of a known identity.
        """
        return self._by_key.get(key) or self._claimed.get(key) or ()

    def name(self, key: bytes) -> str | None:
        """Return the one name that a key has, or None."""
        names = {meaning.name for meaning in self.meanings(key)}
        return names.pop() if len(names) == 1 else None

    def principals(self) -> Iterator[tuple[str, bytes]]:
        """Yield names with the long-term keys behind them."""
        yield ME, self._own_card.id_sign_pk
        for contact in self._contacts:
            yield contact.name, contact.id_sign_pk

    def cell(self, value: Any) -> Any:
        """Return a cell of a table with a name in place of a key; a key without a name is cut for a terminal."""
        key = value if isinstance(value, bytes) else bytes_of(value) if isinstance(value, str) else None
        if key is None:
            return value
        name = self._more.get(key) or self.name(key)
        if name is None and isinstance(value, bytes):
            text = value.hex()
            return f"{text[:_SHORT]}…{text[-_SHORT:]}"
        return value if name is None else name

    @cached_property
    def _own_card(self) -> "IdentityCard":
        from veen.client.identity.keystore import read_card

        session = self._session
        return read_card(session.home.identity_fs(session.identity_name))

    @cached_property
    def _contacts(self) -> Sequence[Any]:
        return contact_store(self._session).load().contacts

    @cached_property
    def _by_key(self) -> dict[bytes, list[Meaning]]:
        from veen.overlays.id.ids import ctx_id_of, realm_id_of
        from veen.overlays.operations.common import account_id_of

        by_key: dict[bytes, list[Meaning]] = {}
        own = self._own_card
        _add(by_key, own.client_id, ME, "client key")
        _add(by_key, own.dh_pk, ME, "seal key")
        realm = realm_id_of("default")
        for name, principal in self.principals():
            _add(by_key, principal, name, "identity")
            _add(by_key, account_id_of(principal), name, "account")
            _add(by_key, ctx_id_of(principal, realm), name, "account in the realm default")
        return by_key

    @cached_property
    def _claimed(self) -> dict[bytes, list[Meaning]]:
        """Names of keys that cards of contacts claim: their client keys and seal keys did not sign them."""
        by_key: dict[bytes, list[Meaning]] = {}
        for contact in self._contacts:
            _add(by_key, contact.card.dh_pk, contact.name, "seal key")
            for client_id in contact.client_ids:
                _add(by_key, client_id, contact.name, "client key")
        return by_key


def _add(by_key: dict[bytes, list[Meaning]], key: bytes, name: str, kind: str) -> None:
    meanings = by_key.setdefault(key, [])
    if (meaning := Meaning(name, kind)) not in meanings:
        meanings.append(meaning)


def cells(session: CliSession, more: Mapping[bytes, str] | None = None) -> Callable[[Any], Any]:
    """Return a function that formats values as cells: names on a terminal, full keys in a pipe. `more` adds names."""
    if session.output.mode is not Mode.HUMAN:
        return lambda value: value
    keys = KnownKeys(session, more or {})
    return keys.cell


def show_table(session: CliSession, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. A terminal shows keys by their names, a pipe in full."""
    cell = cells(session)
    session.output.table(columns, [[cell(value) for value in row] for row in rows])
