"""`veen keystore` with GNOME Keyring, in a D-Bus session of the test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = r"""
set -eu
printf 'login password' | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1
veen() { "$PYTHON" -m veen "$@"; }
veen keygen --name alice --passphrase-file phrase >/dev/null
veen id keyring list --no-input >/dev/null 2>&1 && exit 11
veen keystore remember --passphrase-file phrase >/dev/null
veen id keyring new orders --no-input >/dev/null
veen keystore status --json
"$PYTHON" lock.py
veen id keyring list --no-input --json 2>locked && exit 12
printf 'login password' | gnome-keyring-daemon --replace --unlock --components=secrets >/dev/null 2>&1
veen id keyring list --no-input
veen keystore forget
veen id keyring list --no-input >/dev/null 2>&1 && exit 13
exit 0
"""
LOCK = """
from contextlib import closing
import secretstorage
with closing(secretstorage.dbus_init()) as connection:
    secretstorage.get_default_collection(connection).lock()
"""


@pytest.mark.system
def test_gnome_keyring_opens_a_keystore_after_remember_and_a_locked_one_is_named(tmp_path):
    for program, package in (("dbus-run-session", "dbus-daemon"), ("gnome-keyring-daemon", "gnome-keyring")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {package}")
    (tmp_path / "phrase").write_text("correct horse battery\n")
    (tmp_path / "phrase").chmod(0o600)
    (tmp_path / "lock.py").write_text(LOCK)
    (tmp_path / "runtime").mkdir(mode=0o700)
    places = {"VEEN_HOME": "home", "XDG_DATA_HOME": "data", "XDG_RUNTIME_DIR": "runtime", "XDG_CONFIG_HOME": "config"}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VEEN_", "PYTHON_KEYRING"))}
    env |= {name: str(tmp_path / place) for name, place in places.items()} | {"PYTHON": sys.executable}
    env.pop("DISPLAY", None)  # nobody is there to unlock it in a window
    done = subprocess.run(
        ["dbus-run-session", "--", "bash", "-c", SCRIPT],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert '"opens": true' in done.stdout
    assert "orders" in done.stdout
    assert "no longer opens" in done.stdout
    assert "E.LOCAL.DESKTOP_KEYRING" in (tmp_path / "locked").read_text()
    stored = b"".join(path.read_bytes() for path in Path(tmp_path / "data").rglob("*") if path.is_file())
    assert b"correct horse battery" not in stored
