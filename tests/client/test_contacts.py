"""Contacts: one name, one identity, and the client keys that it was seen with."""

import pytest
from tests.client.builders import NOW, identity, seeded

from veen.client.errors import CardInvalid, ContactExists, ContactUnknown, LocalError, NameInvalid
from veen.client.home import Home
from veen.client.identity.contacts import ContactBook, ContactStore
from veen.core.errors import VeenError

ALICE, BOB = identity("alice"), identity("bob")
LATER = BOB.with_new_client_key(NOW, random=seeded("later"))
BOOK = ContactBook().with_card("bob", BOB.card(), NOW)


def test_a_newer_card_adds_a_client_key_to_the_same_person():
    book = BOOK.with_card("bob", LATER.card(), NOW + 1)
    assert len(book.contacts) == 1
    assert [contact.name for contact in book.find_claiming(BOB.client_id)] == ["bob"]
    assert [contact.name for contact in book.find_claiming(LATER.client_id)] == ["bob"]
    assert book.get("bob").card == LATER.card()
    assert ContactBook.from_bytes(book.to_bytes()) == book


def test_one_name_means_one_identity_and_one_identity_has_one_name():
    with pytest.raises(ContactExists):
        BOOK.with_card("bob", ALICE.card(), NOW)
    with pytest.raises(ContactExists):
        BOOK.with_card("robert", BOB.card(), NOW)
    both = BOOK.with_card("alice", ALICE.card(), NOW)
    with pytest.raises(ContactExists):
        both.rename("bob", "alice")
    assert [contact.name for contact in both.rename("bob", "zoe").contacts] == ["alice", "zoe"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "\x1b[31m", "x" * 65])
def test_a_name_that_could_steer_a_terminal_or_a_path_is_refused(name):
    with pytest.raises(NameInvalid):
        ContactBook().with_card(name, BOB.card(), NOW)
    with pytest.raises(NameInvalid):
        BOOK.rename("bob", name)


def test_a_forged_card_is_no_contact():
    from dataclasses import replace

    with pytest.raises(CardInvalid):
        ContactBook().with_card("bob", replace(BOB.card(), client_id=ALICE.client_id), NOW)


def test_a_client_key_that_two_contacts_claim_is_claimed_by_both():
    """The reader of a stream then names neither."""
    thief = identity("thief")
    card = type(thief.card()).issue(thief.id_sign, dh_pk=thief.dh_pk, client_id=BOB.client_id, name="thief")
    book = BOOK.with_card("thief", card, NOW)
    assert {contact.name for contact in book.find_claiming(BOB.client_id)} == {"bob", "thief"}


def test_an_unknown_name_is_told(tmp_path):
    for action in (BOOK.get, BOOK.without):
        with pytest.raises(ContactUnknown):
            action("nobody")


def test_contacts_are_kept_and_a_damaged_file_is_told(tmp_path):
    home = Home.at(tmp_path)
    store = ContactStore(home)
    assert store.load() == ContactBook()
    store.change(lambda book: book.with_card("bob", BOB.card(), NOW))
    assert ContactStore(home).load() == BOOK
    path = tmp_path / "contacts" / "book.cbor"
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(LocalError):
        store.load()
    with pytest.raises(VeenError):
        store.change(lambda book: book.without("bob"))
