"""Every code by which an overlay says that something counts for nothing is explained."""

import re
from pathlib import Path

import pytest
from tests.cli.test_explain import texts

import veen
from veen.cli.explaining import explanation_of
from veen.overlays.id import auth
from veen.overlays.wallet import codes

CODE = re.compile(r"(OVL|KV|CRUD|QUEUE|CRDT|RPC|ID|WAL|STATE)\.[A-Z_]+")
SOURCE = Path(veen.__file__).parent


def test_every_code_of_an_overlay_is_explained():
    used = {
        text: path.name
        for path in sorted((SOURCE / "overlays").rglob("*.py"))
        for text in texts(path)
        if CODE.fullmatch(text)
    }
    assert {"OVL.CBOR", "WAL.FROZEN", "ID.STREAM", "QUEUE.DONE"} <= used.keys()
    used.pop("ID.AUTH_X", None)  # an f-string, whose codes the next test has
    assert {code: where for code, where in used.items() if explanation_of(code) is None} == {}


@pytest.mark.req("WAL-20")
def test_every_code_of_wallets_and_of_authentication_is_explained():
    listed = [*codes.MEANINGS, *re.findall(r"ID\.AUTH_[A-Z]+", auth.__doc__ or "")]
    assert len(listed) > 20
    assert [code for code in listed if explanation_of(code) is None] == []
