"""`veen keystore`: the desktop keyring opens keystores, if its user said so.

Here the keyring is one of keyrings.alt, in a file; `test_keystore_desktop.py` has GNOME Keyring.
"""

import json
import sys

import pytest
from tests.cli.homes import Cli
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit
from veen.client.home import Home
from veen.client.identity.unlocking import open_without_asking

PHRASE = "correct horse battery"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "phrase").write_text(f"{PHRASE}\n")
    (tmp_path / "next").write_text("entirely other words here\n")
    for name in ("phrase", "next"):
        (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.fixture
def cli(files):
    cli = Cli(files / "home")
    cli.env |= {
        "PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring",
        "XDG_DATA_HOME": str(files / "data"),
        "XDG_CONFIG_HOME": str(files / "config"),
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={files}/no-bus",
    }
    cli.run("keygen", "--name", "alice", "--passphrase-file", files / "phrase")
    return cli


def kept(files):
    """What the keyring holds."""
    return "".join(path.read_text() for path in (files / "data").rglob("*") if path.is_file())


def remembered(cli, files):
    return cli.json("keystore", "remember", "--passphrase-file", files / "phrase")


def test_a_keystore_that_is_remembered_opens_without_a_passphrase_until_it_is_forgotten(cli, files):
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    done = remembered(cli, files)
    assert (done["name"], done["remembered"]) == ("alice", True)
    assert cli.json("id", "keyring", "list") == {"streams": []}
    cli.run("id", "keyring", "new", "orders")  # also what writes the keystore
    assert cli.json("keystore", "status")["keystores"] == [{"name": "alice", "opens": True}]
    assert "opened by it" in cli.run("keystore", "status").stdout
    assert cli.json("keystore", "forget", "alice") == {"name": "alice", "forgotten": True}
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert cli.json("keystore", "forget", "alice") == {"name": "alice", "forgotten": False}
    assert cli.json("keystore", "status")["keystores"] == []


def test_a_program_opens_it_too(cli, files, monkeypatch):
    remembered(cli, files)
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    keystore = open_without_asking(Home.at(cli.root), "alice")
    assert keystore is not None
    assert keystore.identity.name == "alice"


def test_nothing_is_kept_before_its_user_says_so_and_the_passphrase_never(cli, files):
    cli.run("id", "keyring", "new", "orders", "--passphrase-file", files / "phrase")
    assert kept(files) == ""
    remembered(cli, files)
    assert kept(files) != ""
    assert PHRASE not in kept(files)
    assert cli.secret_free(PHRASE.encode())


def test_an_entry_that_is_gone_or_damaged_leaves_the_passphrase(cli, files):
    remembered(cli, files)
    (path,) = [path for path in (files / "data").rglob("*") if path.is_file()]
    path.write_text(path.read_text().replace("\n\t", "\n\tAAAA", 1))
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    path.unlink()
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert cli.json("keystore", "status")["keystores"] == [{"name": "alice", "opens": False}]
    assert "not opened by it" in cli.run("keystore", "status").stdout
    assert cli.json("keystore", "forget")["forgotten"] is True


def test_a_new_passphrase_is_not_remembered_by_itself(cli, files):
    remembered(cli, files)
    changed = cli.run("id", "passphrase", "--new-passphrase-file", files / "next")
    assert "veen keystore remember alice" in changed.stderr
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert cli.json("keystore", "status")["keystores"] == []
    assert cli.json("keystore", "remember", "--passphrase-file", files / "next")["remembered"] is True


def test_a_keyring_that_fails_is_named_and_a_person_is_asked_instead(cli, files):
    remembered(cli, files)
    broken = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    error = cli.json("id", "keyring", "list", code=Exit.LOCAL, **broken)
    assert error["code"] == "E.LOCAL.DESKTOP_KEYRING"
    assert "veen agent start" in error["hint"]
    assert "desktop keyring" in cli.json("keystore", "status", **broken)["trouble"]
    answers = [("passphrase of alice:", PHRASE)]
    code, screen = in_terminal("id", "keyring", "list", answers=answers, env={**cli.env, **broken})
    assert code == Exit.OK, screen
    assert "the desktop keyring cannot be used" in screen
    changed = cli.run(
        "id", "passphrase", "--passphrase-file", files / "phrase", "--new-passphrase-file", files / "next", **broken
    )
    assert "still in the keyring" in changed.stderr


@pytest.mark.parametrize("backend", ["keyrings.alt.file.NoSuchKeyring", "no.such.module"])
def test_a_keyring_that_does_not_exist_is_named_before_a_passphrase_is_asked_for(cli, files, backend):
    error = cli.json("keystore", "remember", code=Exit.LOCAL, PYTHON_KEYRING_BACKEND=backend)
    assert error["code"] == "E.LOCAL.DESKTOP_KEYRING"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a keyring")
def test_a_file_in_the_clear_is_no_keyring_unless_its_user_chose_it(cli, files):
    """keyrings.alt is installed, and has such a file: nobody asked for it by name."""
    error = cli.json(
        "keystore", "remember", "--passphrase-file", files / "phrase", code=Exit.LOCAL, PYTHON_KEYRING_BACKEND=None
    )
    assert (error["code"], "no keyring of a desktop" in error["cause"]) == ("E.LOCAL.DESKTOP_KEYRING", True)
    assert cli.json("keystore", "status", PYTHON_KEYRING_BACKEND=None)["keyring"] is None
    assert kept(files) == ""


def test_without_the_library_the_extra_is_named(cli, files, monkeypatch):
    remembered(cli, files)
    for name in [name for name in sys.modules if name.partition(".")[0] == "keyring"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "keyring", None)
    error = cli.json("keystore", "remember", "--passphrase-file", files / "phrase", code=Exit.LOCAL)
    assert error["code"] == "E.EXTRA"
    assert "[keyring]" in error["hint"]
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.EXTRA"
    assert cli.json("id", "keyring", "list", "--passphrase-file", files / "phrase") == {"streams": []}


def test_a_keystore_without_a_passphrase_needs_no_keyring(cli):
    cli.keygen("bob")
    error = cli.json("keystore", "remember", "bob", code=Exit.LOCAL)
    assert "no passphrase" in error["cause"]
    assert json.dumps(cli.json("keystore", "status")["keystores"]) == "[]"


def test_a_wrong_passphrase_is_not_remembered(cli, files):
    error = cli.json("keystore", "remember", "--passphrase-file", files / "next", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.PASSPHRASE"
    assert kept(files) == ""
