"""Names of people and authors of entries: contacts, the identity in use, and proven keys."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from re import Pattern

    from veen.cli.shared.command import CliSession
    from veen.client.identity.authors import Author
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.contacts import Contact, ContactBook, ContactStore
    from veen.client.read.reading import Entry
    from veen.core.objects.speaking import AuthorKey


def contact_store(session: "CliSession") -> "ContactStore":
    from veen.client.identity.contacts import ContactStore

    return ContactStore(session.home)


ME: Final = "me"  # as veen.client.identity.authors has it; not imported, as help must stay fast


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
        from veen.client.identity.authors import AuthorNames

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
