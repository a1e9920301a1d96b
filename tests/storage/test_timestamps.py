"""Anchors at a timestamp authority (RFC 3161): what it answers is verified before it is taken, and again offline."""

import shutil
from pathlib import Path

import pytest
from tests.authority import Authority, openssl, serving

from veen.core.hashing import H
from veen.storage import timestamps
from veen.storage.anchors import NONCE_BYTES, AnchorError
from veen.storage.timestamps import TimestampAuthority, TimestampTrust, post_timestamp_query

VECTORS = Path(__file__).parents[1] / "vectors" / "timestamp"
ROOT, TOKEN = H(b"a root"), (VECTORS / "root.tsr").read_bytes()
TRUST = TimestampTrust.read(VECTORS / "trusted.pem")
NONCE = bytes(NONCE_BYTES)


@pytest.mark.req("ANC-01")
def test_a_token_verifies_for_its_root_and_no_other_without_its_authority():
    offline = TimestampAuthority("http://127.0.0.1:9", TRUST)
    assert offline.verify(ROOT, TOKEN)
    assert not offline.verify(H(b"another root"), TOKEN)
    assert TRUST.read_time(ROOT, TOKEN).year >= 2026


def test_no_changed_bit_gives_a_token_another_time_or_root():
    """CMS leaves a few bits unsigned, such as its version; every 11th is tried, as each costs a signature check."""
    time = TRUST.read_time(ROOT, TOKEN)
    for bit in range(0, 8 * len(TOKEN), 11):
        changed = bytearray(TOKEN)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert TRUST.read_time(ROOT, bytes(changed)) == time
        except AnchorError:
            continue
        assert not TimestampAuthority("http://x", TRUST).verify(H(b"another root"), bytes(changed))


def test_an_authority_that_is_not_trusted_is_not_believed():
    stranger = TimestampTrust.read(VECTORS / "stranger.pem")
    assert not TimestampAuthority("http://x", stranger).verify(ROOT, TOKEN)
    with pytest.raises(AnchorError, match="not valid"):
        stranger.read_time(ROOT, TOKEN)


def test_certificates_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "none.pem"
    with pytest.raises(AnchorError, match=r"none\.pem"):
        TimestampTrust.read(path)
    path.write_bytes(b"nothing")
    with pytest.raises(AnchorError, match="no certificates"):
        TimestampTrust.read(path)
    path.write_bytes((VECTORS / "trusted.pem").read_bytes().partition(b"-----END CERTIFICATE-----\n")[2])
    with pytest.raises(AnchorError, match="no self-signed"):
        TimestampTrust.read(path)


@pytest.mark.req("ANC-02")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "is not valid"),
        (b"rubbish", "is not valid"),
        (TOKEN[:-1], "is not valid"),
        (TOKEN, "not valid"),  # of another request: its nonce is another one
        ((500, b"down"), "does not respond"),
        ((302, b""), "does not respond"),
        (bytes(65 * 1024), "exceeds 64 KiB"),
    ],
    ids=["empty", "rubbish", "cut", "replayed", "error", "redirect", "huge"],
)
def test_an_answer_that_is_no_token_for_this_request_is_not_taken(answer, why):
    with serving(lambda query: answer) as url, pytest.raises(AnchorError, match=why):
        TimestampAuthority(url, TRUST).publish(ROOT, 0, 0, NONCE)


def test_silence_and_closed_ports_end_in_an_error(monkeypatch):
    monkeypatch.setattr(timestamps, "_SECONDS", 0.2)
    with serving(lambda query: None) as url, pytest.raises(AnchorError, match="does not respond"):
        TimestampAuthority(url, TRUST).publish(ROOT, 0, 0, NONCE)
    with pytest.raises(AnchorError, match="does not respond"):
        TimestampAuthority(url, TRUST).publish(ROOT, 0, 0, NONCE)


def test_only_http_is_spoken():
    for url in ("file:///etc/passwd", "ftp://host/", "nothing"):
        with pytest.raises(AnchorError, match="not a URL"):
            TimestampAuthority(url, TRUST)
        with pytest.raises(AnchorError, match="not a URL"):
            post_timestamp_query(url, b"")


@pytest.mark.system
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
@pytest.mark.req("ANC-01", "ANC-02")
def test_a_real_authority_stamps_and_openssl_agrees(tmp_path):
    authority = Authority(tmp_path / "tsa")
    with serving(authority.answer) as url:
        for trusted in (
            authority.bundle,
            authority.directory / "root.pem",
        ):  # with and without certificates in the token
            backend = TimestampAuthority(url, TimestampTrust.read(trusted))
            token = backend.publish(ROOT, 7, 1_000, NONCE)
            assert backend.verify(ROOT, token)
            (tmp_path / "token.tsr").write_bytes(token)
            (tmp_path / "root.bin").write_bytes(ROOT)
            done = openssl(
                "ts", "-verify", "-data", tmp_path / "root.bin", "-in", tmp_path / "token.tsr",
                "-CAfile", authority.directory / "root.pem", "-untrusted", authority.directory / "tsa.pem",
            )  # fmt: skip
            assert b"Verification: OK" in done.stdout + done.stderr
