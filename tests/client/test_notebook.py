"""What objects look like in a notebook: escaped, short, and without secrets."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.cli import objects as world
from tests.client.builders import seeded
from tests.client.hubs import ORDERS, all_of, connected, run

from veen.client.identity.identity import Identity, PrekeySecret
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import Secrets, _Stored
from veen.client.verify.label_state import LabelState
from veen.core.html import of_wire, shown
from veen.core.sealing.ciphertext import Attachment


class Balanced(HTMLParser):
    """Whether every tag that is opened is closed, and which there are."""

    def __init__(self, html):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", world.OBJECTS)
def test_every_wire_object_has_a_card_with_its_fields(name):
    obj = world.OBJECTS[name]
    html = obj._repr_html_()
    Balanced(html)
    assert obj.KIND in html
    for field, _ in obj.present_fields():
        assert f">{field}</th>" in html
    assert not re.search(r">[0-9a-f]{20,}<", html)  # hashes are short; all of them is in the title


def test_what_others_wrote_is_text():
    evil = "<script>alert(1)</script>&\"'"
    html = Attachment(coid=bytes(32), size=1, name=evil)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert Balanced(html).tags == {"table", "caption", "tr", "th", "td", "code"}


def test_long_values_are_cut_and_say_so():
    assert "(1000 characters)" in shown("x" * 1000)
    assert "… 84 more" in shown([1] * 100)
    assert "(1000 bytes)" in shown(bytes(1000))
    assert len(shown(bytes(100_000))) < 500
    assert shown(None) == shown(()) == "none"
    assert shown({"a": b"\x01"}).count("<td") == 1


def test_secrets_are_not_shown():
    """What repr hides is hidden in a notebook too."""
    identity = Identity.create("alice", now=0, random=seeded("alice"))
    prekeys = (PrekeySecret.create(identity, now=0, random=seeded("pre")),)
    secrets = Secrets(identity=identity, prekeys=prekeys, keyring=Keyring().with_keys(ORDERS))
    stored = _Stored.from_bytes(secrets.to_bytes())
    state = LabelState(
        hub_id=bytes(32), label=bytes(32), client_id=bytes(32), profile_id=bytes(32), mode="full", rk=b"\xab" * 32
    )
    for obj, hidden in (
        (ORDERS, [ORDERS.secret()]),
        (stored, [stored.id_sign, stored.dh_sk, stored.client_keys[0].seed, stored.prekeys[0].sk, ORDERS.secret()]),
        (state, [state.rk]),
    ):
        html = of_wire(obj)
        Balanced(html)
        for secret in hidden:
            assert secret.hex()[:8] not in html
            assert secret.hex()[-4:] not in html or secret.hex()[:4] not in html


def test_proofs_entries_and_receipts_of_the_client_have_cards(tmp_path):
    async def scenario():
        async with connected(tmp_path) as (_, _, client):
            sent = await client.send("orders", b"<b>secret body</b>", attachments=[b"data"])
            await client.send("orders", b"second")
            html = sent._repr_html_()
            Balanced(html)
            assert "receipt verified" in html
            entries = await all_of(client.read("orders"))
            html = entries[0]._repr_html_()
            Balanced(html)
            assert "secret body" not in html
            assert "opened, 18 bytes" in html
            assert "attachments" in html
            sealed = await all_of(client.read("orders", open=False))
            assert "sealed" in sealed[0]._repr_html_()
            failed = replace(sealed[0], error="E.OPEN: <why>", ts=2**60)
            assert "&lt;why&gt;" in failed._repr_html_()
            proven = await client.proof("orders", 1, tree_size=2)
            html = proven._repr_html_()
            assert {"svg", "table"} <= Balanced(html).tags
            assert proven.root.hex()[:4] in html

    run(scenario())
