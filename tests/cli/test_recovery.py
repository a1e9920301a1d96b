"""`veen keystore recovery` and `veen keystore recover`: a lost passphrase, as a person meets it."""

import stat

import pytest
from tests.cli.homes import Cli
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit

LOST = "correct horse battery staple"
NEXT = "entirely other words here"


@pytest.fixture
def files(tmp_path):
    for name, text in (("lost", LOST), ("next", NEXT)):
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.fixture
def cli(files):
    cli = Cli(files / "home")
    cli.run("keygen", "--name", "alice", "--passphrase-file", files / "lost")
    return cli


def test_keygen_reminds_of_a_recovery_key(files):
    assert (
        "veen keystore recovery add"
        in Cli(files / "other").run("keygen", "--name", "bob", "--passphrase-file", files / "lost").stderr
    )
    assert "recovery" not in Cli(files / "plain").run("keygen", "--insecure-plain-keystore").stderr


def test_a_lost_passphrase_is_replaced_with_the_recovery_key(cli, files):
    slot = cli.json("keystore", "recovery", "add", "--passphrase-file", files / "lost")
    (files / "paper").write_text(slot["recovery_key"])
    (files / "paper").chmod(0o600)
    assert cli.json("keystore", "recovery", "list")["recoveries"] == [{"id": slot["id"], "kind": "key"}]
    cli.json("keystore", "recover", "--recovery-file", files / "paper", "--new-passphrase-file", files / "next")
    assert cli.json("id", "show", "--keys", "--passphrase-file", files / "next")["name"] == "alice"
    wrong = cli.json("id", "show", "--keys", "--passphrase-file", files / "lost", code=Exit.LOCAL)
    assert wrong["code"] == "E.LOCAL.PASSPHRASE"
    recover = ("keystore", "recover", "--recovery-file", files / "lost", "--new-passphrase-file", files / "next")
    other = cli.json(*recover, code=Exit.LOCAL)  # a passphrase is no recovery secret
    assert (other["code"], "recovery secret" in other["cause"]) == ("E.LOCAL.RECOVERY_SECRET", True)
    cli.json("keystore", "recovery", "remove", slot["id"], "--passphrase-file", files / "next")
    assert cli.json("keystore", "recovery", "list")["recoveries"] == []
    assert cli.json("id", "show", "--keys", "--passphrase-file", files / "next")["name"] == "alice"


def test_a_recovery_key_in_a_file_is_not_shown_and_never_replaces_a_file(cli, files):
    slot = cli.json("keystore", "recovery", "add", "--out", files / "key", "--passphrase-file", files / "lost")
    assert "recovery_key" not in slot
    assert stat.S_IMODE((files / "key").stat().st_mode) == 0o600
    cli.run("keystore", "recover", "--recovery-file", files / "key", "--new-passphrase-file", files / "next")
    again = cli.json(
        "keystore", "recovery", "add", "--out", files / "key", "--passphrase-file", files / "next", code=Exit.LOCAL
    )
    assert (again["code"], "exists" in again["message"]) == ("E.LOCAL.INPUT", True)
    assert len(cli.json("keystore", "recovery", "list")["recoveries"]) == 1


def test_a_second_passphrase_recovers_and_weak_ones_are_refused(cli, files):
    (files / "weak").write_text("password1\n")
    (files / "weak").chmod(0o600)
    common = ("keystore", "recovery", "add", "--passphrase-file", files / "lost")
    assert cli.json(*common, "--new-passphrase-file", files / "weak", code=Exit.LOCAL)["code"] == "E.LOCAL.WEAK"
    assert cli.json(*common, "--new-passphrase-file", files / "next")["kind"] == "passphrase"
    cli.run("keystore", "recover", "--recovery-file", files / "next", "--new-passphrase-file", files / "next")
    assert cli.json("id", "show", "--keys", "--passphrase-file", files / "next")["name"] == "alice"


def test_without_a_recovery_secret_the_reason_is_said_before_anything_is_asked(cli):
    refused = cli.json("keystore", "recover", code=Exit.LOCAL)
    assert refused["code"] == "E.LOCAL.RECOVERY"
    cli.json("keystore", "recovery", "remove", "00000000", code=Exit.LOCAL)


def test_at_a_terminal_the_key_and_the_new_passphrase_are_asked_for(cli, files):
    slot = cli.json("keystore", "recovery", "add", "--passphrase-file", files / "lost")
    answers = (("recovery key", slot["recovery_key"]), ("new passphrase", NEXT), ("Repeat", NEXT))
    code, screen = in_terminal("keystore", "recover", answers=answers, env=cli.env)
    assert code == 0, screen
    assert slot["recovery_key"] not in screen
    assert cli.json("id", "show", "--keys", "--passphrase-file", files / "next")["name"] == "alice"


def test_a_keystore_without_a_passphrase_is_not_opened_in_place_of_a_sealed_one(cli, files, tmp_path):
    """Whoever can write the home, and does not know the passphrase, can only make a keystore that needs none."""
    thief = Cli(tmp_path / "thief")
    thief.keygen("alice")
    (stolen,) = cli.root.rglob("keystore.enc")
    (own,) = thief.root.rglob("keystore.enc")
    shown = ("id", "show", "alice", "--keys", "--passphrase-file", files / "lost")
    assert cli.json(*shown)["name"] == "alice"
    for name in ("keystore.enc", "identity_card"):
        (stolen.parent / name).write_bytes((own.parent / name).read_bytes())
    refused = cli.json(*shown, code=Exit.LOCAL)
    assert refused["code"] == "E.LOCAL.KEYSTORE"
    assert "replaced" in refused["cause"]
