"""The page that verifies files: the same verdicts as `veen verify`, and forms that are none."""

import asyncio

import pytest
from tests.products.console.consoles import world_at

from veen.core.crypto.ed25519 import SigningKey
from veen.products.console import writes as uploads


def run(tmp_path, work):
    async def main():
        async with world_at(tmp_path, count=5) as world:
            return await work(world)

    return asyncio.run(main())


async def verdict_of(world, data, related=b"", key=""):
    files = {"file": ("it.cbor", data), "related": ("other.cbor", related)}
    answer = await world.browser.post("/verify.json", files=files, data={"hub_pk": key})
    assert answer.status_code == 200, answer.text
    page = await world.browser.post("/verify", files=files, data={"hub_pk": key})
    assert page.status_code == 200
    verdict = answer.json()["verdict"]
    words = {"verified": "Verified by this console", "failed": "Verification FAILED", "undecided": "Verified by nobody"}
    assert words[verdict["verdict"]] in page.text
    assert answer.json()["verified_by"] == ("this console" if verdict["verdict"] == "verified" else "nobody")
    return verdict


def test_objects_and_evidence_files_are_verified_with_the_pinned_key(tmp_path):
    async def work(world):
        proven = await world.client.proof("orders", 2)
        receipt, proof = proven.receipt.to_bytes(), proven.proof.to_bytes()
        verdict = await verdict_of(world, receipt)
        assert verdict["verdict"] == "verified"
        assert verdict["kind"] == "RECEIPT"
        assert any("hub_sig" in line for line in verdict["checks"])
        assert (await verdict_of(world, receipt.hex().encode()))["verdict"] == "verified"
        assert (await verdict_of(world, proof))["verdict"] == "undecided"
        assert (await verdict_of(world, proof, receipt))["verdict"] == "verified"
        evidence = (await world.client.evidence("orders")).to_file()
        verdict = await verdict_of(world, evidence)
        assert (verdict["verdict"], verdict["entry_count"], verdict["stream"]) == ("verified", 5, "orders")
        assert verdict["does_not_prove"]

    run(tmp_path, work)


def test_altered_files_and_files_of_another_hub_fail_with_a_code(tmp_path):
    async def work(world):
        receipt = bytearray((await world.client.receipt("orders", 2)).to_bytes())
        receipt[-1] ^= 1
        verdict = await verdict_of(world, bytes(receipt))
        assert verdict["verdict"] == "failed"
        assert verdict["code"].startswith("E.")
        assert verdict["hint"]
        evidence = bytearray((await world.client.evidence("orders")).to_file())
        evidence[-40] ^= 1
        assert (await verdict_of(world, bytes(evidence)))["verdict"] == "failed"
        evidence[-40] ^= 1
        stranger = SigningKey(b"\x05" * 32).public.hex()
        verdict = await verdict_of(world, bytes(evidence), key=f"ed25519:{stranger}")
        assert verdict["code"] == "E.EVIDENCE.HUB"
        assert verdict["judged_by"] == "the key in the form"
        verdict = await verdict_of(world, b"<script>alert(1)</script>")
        assert (verdict["verdict"], verdict["kind"]) == ("failed", "unknown")

    run(tmp_path, work)


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\ndata\r\n'


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({"content-type": "application/x-www-form-urlencoded"}, b"file=x"),
        ({"content-type": "multipart/form-data"}, FILE + b"--b--\r\n"),
        ({"content-type": "multipart/form-data; boundary=" + "b" * 71}, FILE + b"--b--\r\n"),
        (FORM, b""),
        (FORM, FILE),
        (FORM, b"--b--\r\n"),
        (FORM, FILE + FILE + b"--b--\r\n"),
        (FORM, FILE * 9 + b"--b--\r\n"),
        (FORM, b"--b\r\n\r\ndata\r\n--b--\r\n"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\r\n--b--\r\n'),
        (FORM, FILE + b'--b\r\nContent-Disposition: form-data; name="hub_pk"\r\n\r\nzz\r\n--b--\r\n'),
    ],
    ids=[
        "empty", "other form", "no boundary", "long boundary", "no body", "broken off", "no parts", "twice", "many",
        "no name", "no file", "no key",
    ],
)  # fmt: skip
def test_a_form_that_is_none_is_a_named_error(tmp_path, headers, body):
    async def work(world):
        answer = await world.browser.post("/verify.json", content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "E.CONSOLE.UPLOAD"

    run(tmp_path, work)


def test_what_is_above_the_bound_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 1000)
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(100):
            sent += 100
            yield b"x" * 100

    async def work(world):
        answer = await world.browser.post("/verify.json", content=chunks(), headers=FORM)
        assert answer.status_code == 400
        assert "more than 1000 bytes" in answer.text

    run(tmp_path, work)


@pytest.mark.parametrize("data", [b"\r\n--b", b"--", b"\r\n\r\n", b"\x00\xff\r\n", b"\r", b"\n"])
def test_binary_contents_arrive_as_they_are(data):
    body = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + data + b"\r\n--xyz--\r\n"
    assert uploads._parts(body, b"xyz") == {b"file": [data]}
