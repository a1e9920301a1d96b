"""A `veen.toml` in a directory that somebody else wrote: it selects what the user defined, and nothing else."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.homes import OTHER, PIN, Cli
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit
from veen.client.config.file import ConfigFile, read
from veen.client.config.projects import check_trust, read_trusted, trust, untrust, wishes
from veen.client.config.settings import resolve
from veen.client.errors import SettingsError

HOSTILE = f"""\
current_context = "evil"
[context.evil]
hub = "https://evil.example"
hub_pk = "{OTHER}"
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    cli = Cli(tmp_path / "home")
    cli.run("context", "add", "acme", "--hub", "http://acme.example", "--pin", PIN)
    cli.run("context", "add", "dev", "--hub", "http://dev.example", "--pin", PIN)
    return cli


def project(text):
    Path("veen.toml").write_text(text)
    return Path("veen.toml").absolute()


class _Listener(ThreadingHTTPServer):
    """Keeps what strangers are sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Listener

    def do_POST(self):
        self.server.requests.append((self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the name is the library's

    def log_message(self, *_):
        pass


@pytest.fixture
def listener():
    with _Listener() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


# --- what an untrusted file may say --------------------------------------------------------------------------


def test_a_project_file_may_choose_a_context_and_an_identity_of_the_user(cli):
    project('current_context = "dev"\nidentity = "alice"\n')
    shown = cli.json("config", "show", "--origin")
    assert shown["hub"]["value"] == "http://dev.example"
    assert shown["context"] == {"value": "dev", "origin": "./veen.toml"}
    assert shown["identity"] == {"value": "alice", "origin": "./veen.toml"}


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        f'[context.evil]\nhub_pk = "{OTHER}"\n',
        '[context.evil]\nca_file = "ca.pem"\n',
        '[context.evil]\ntoken_file = "token"\n',
        '[context.evil]\nprofile = "low"\n',
        "[context.evil]\ninsecure_http = true\n",
        "[context.evil]\ninsecure_http = false\n",
        '[context.acme]\ninsecure_http = "true"\n',
        '[context.evil]\nidentity = "alice"\n',
        "[context.evil]\n",
        '[context.acme]\nhub = "https://evil.example"\n',
        'identity = "./keys"\n',
        'identity = ".."\n',
        'mode = "light"\n',
        "wait = 99999\n",
        "timeout = 99999\n",
        "remember_streams = true\n",
    ],
)
def test_anything_else_needs_trust(cli, text):
    path = project(text)
    error = cli.json("config", "show", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.UNTRUSTED"
    assert str(path) in error["message"]
    for key, value in wishes(read(path, project=True)).items():
        assert f"{key} = {value}" in error["cause"]
    assert "veen config trust" in error["hint"]


def test_a_context_that_the_user_does_not_have_is_not_made_by_choosing_it(cli):
    project('current_context = "evil"\n')
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.CONTEXT"


def test_nothing_is_sent_to_the_hub_of_an_untrusted_file(cli, listener, tmp_path):
    """The attack: a cloned directory, a token in the environment, and any command that asks a hub."""
    (tmp_path / "token").write_text("secret\n")
    project(f'current_context = "evil"\n[context.evil]\nhub = "{listener.url}"\nhub_pk = "{OTHER}"\n')
    cli.keygen()
    env = {"VEEN_TOKEN_FILE": str(tmp_path / "token")}
    for line in (["hub", "status"], ["send", "orders", "hello"], ["stream", "orders"], ["hub", "metrics"]):
        assert cli.json(*line, code=Exit.LOCAL, **env)["code"] == "E.LOCAL.UNTRUSTED"
    assert listener.requests == []


def test_many_and_long_wishes_are_shown_in_part(cli):
    project("".join(f'[context.c{n}]\nhub = "https://{"a" * 500}.example"\n' for n in range(100)))
    cause = cli.json("config", "show", code=Exit.LOCAL)["cause"]
    assert "and 88 more" in cause
    assert len(cause) < 3_000


# --- tokens of the environment -------------------------------------------------------------------------------

USER = ConfigFile(
    Path("/home/u/config.toml"),
    {"current_context": "acme"},
    {
        "acme": {"hub": "https://acme.example", "hub_pk": PIN},
        "dev": {"hub": "https://dev.example", "hub_pk": PIN, "token_file": "/home/u/dev"},
    },
)
ENV = {"VEEN_TOKEN_FILE": "/home/u/token"}


def project_of(top, contexts=None):
    return ConfigFile(Path("/w/veen.toml"), top, contexts or {}, True, "00")


def test_a_token_of_the_environment_is_for_hubs_that_the_user_chose():
    nothing = project_of({})
    chosen = project_of({"current_context": "dev"})
    own = project_of({"current_context": "ci"}, {"ci": {"hub": "https://ci.example", "hub_pk": OTHER}})

    def token(project, flags=None, env=ENV):
        return resolve(flags or {}, env, project, USER).token_file.value

    assert token(nothing) == "/home/u/token"
    assert token(nothing, {"context": "dev"}) == "/home/u/token"
    assert token(nothing, {"hub": "https://other.example"}) == "/home/u/token"
    assert token(project_of({"current_context": "acme"})) == "/home/u/token"  # what the user uses anyway
    assert token(chosen) == "/home/u/dev"  # its own token, not that of the environment
    assert token(own) is None
    assert token(own, {"token_file": "/t"}) == "/t"
    assert token(own, {"context": "acme"}) == "/home/u/token"
    assert token(chosen, {"context": "dev"}) == "/home/u/token"
    assert token(chosen, env={**ENV, "VEEN_CONTEXT": "dev"}) == "/home/u/token"
    assert "./veen.toml chose the hub" in resolve({}, ENV, own, USER).token_file.origin


def test_a_trusted_hub_does_not_get_the_token_of_the_environment(cli, listener, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    project(f'current_context = "ci"\n[context.ci]\nhub = "{listener.url}"\nhub_pk = "{OTHER}"\n')
    cli.run("config", "trust", "--yes")
    done = cli.invoke("hub", "status", VEEN_TOKEN_FILE=str(tmp_path / "token"))
    assert "VEEN_TOKEN_FILE is not used" in done.stderr
    cli.invoke("hub", "status", "--token-file", str(tmp_path / "token"))
    without, with_token = [headers.get("Authorization") for _, headers in listener.requests]
    assert (without, with_token) == (None, "Bearer secret")


def test_a_token_goes_nowhere_in_the_clear_because_a_project_file_says_so(cli, tmp_path):
    """The user's own context has a token; the file of a cloned directory adds insecure_http to it."""
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    there = ["--hub", "http://hub.invalid", "--token-file", tmp_path / "token"]
    assert cli.json("hub", "status", *there, code=Exit.LOCAL)["code"] == "E.LOCAL.PLAIN_HTTP"
    for text in ("insecure_http = true\n", 'current_context = "acme"\ninsecure_http = true\n'):
        project(text)  # no such key outside of a context
        assert cli.json("hub", "status", *there, code=Exit.LOCAL)["code"] == "E.LOCAL.CONFIG"
    project('[context.far]\nhub = "http://hub.invalid"\ninsecure_http = true\n')
    for command in (["hub", "status", *there], ["hub", "status", "--context", "far"], ["send", "orders", "hello"]):
        assert cli.json(*command, code=Exit.LOCAL)["code"] == "E.LOCAL.UNTRUSTED"
    cli.run("config", "trust", "--yes")
    assert cli.json("hub", "status", *there, code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"  # trusted, as it says


# --- trust ---------------------------------------------------------------------------------------------------


def test_trust_is_bound_to_content_and_place(cli, tmp_path):
    path = project(HOSTILE)
    trust = cli.json("config", "trust", "--yes")
    assert trust["path"] == str(path)
    assert trust["sets"] == {"context.evil.hub": "https://evil.example", "context.evil.hub_pk": OTHER}
    assert cli.json("config", "show")["hub"] == "https://evil.example"
    (row,) = cli.json("config", "trusted")["projects"]
    assert (row["path"], row["state"]) == (str(path), "in force")
    project(HOSTILE.replace("evil.example", "worse.example"))
    error = cli.json("config", "show", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.UNTRUSTED"
    assert "changed since it was trusted" in error["cause"]
    assert cli.json("config", "trusted")["projects"][0]["state"] == "changed"
    project(HOSTILE)
    assert cli.json("config", "show")["hub"] == "https://evil.example"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "veen.toml").write_text(HOSTILE)
    os.chdir(tmp_path / "other")
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.UNTRUSTED"


@pytest.mark.parametrize("name", ["ca_file", "witness_policy"])
def test_trust_is_bound_to_the_files_that_decide_whom_to_believe(cli, tmp_path, name):
    path = project(HOSTILE + f'{name} = "named.txt"\n')
    named = path.parent / "named.txt"
    named.write_text("one\n")
    cli.run("config", "trust", "--yes")
    assert cli.json("config", "show")["hub"] == "https://evil.example"
    named.write_text("two\n")
    assert "a file that it names" in cli.json("config", "show", code=Exit.LOCAL)["cause"]
    assert cli.json("config", "trusted")["projects"][0]["state"] == "changed"
    named.write_text("one\n")
    assert cli.json("config", "trusted")["projects"][0]["state"] == "in force"


def test_untrust_takes_it_back_also_if_the_file_is_gone(cli, tmp_path):
    path = project(HOSTILE)
    cli.run("config", "trust", "--yes", path.parent)
    assert cli.json("config", "untrust") == {"path": str(path), "trusted": False}
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.UNTRUSTED"
    assert cli.json("config", "untrust", code=Exit.LOCAL)["code"] == "E.LOCAL"
    cli.run("config", "trust", "--yes", path)
    os.chdir(tmp_path)
    path.unlink()
    path.parent.rmdir()
    assert cli.json("config", "trusted")["projects"][0]["state"] == "gone"
    cli.run("config", "untrust", path.parent)
    assert cli.json("config", "trusted")["projects"] == []


def test_a_person_is_shown_what_the_file_wants_and_decides(cli):
    project(HOSTILE)
    code, screen = in_terminal("config", "trust", answers=[("Trust this file", "n")], env=cli.env)
    assert code == Exit.LOCAL
    assert "context.evil.hub = https://evil.example" in screen
    assert f"context.evil.hub_pk = {OTHER}" in screen
    assert cli.json("config", "trusted")["projects"] == []
    code, screen = in_terminal("config", "trust", answers=[("Trust this file", "y")], env=cli.env)
    assert code == Exit.OK, screen
    assert cli.json("config", "show")["hub"] == "https://evil.example"


def test_a_script_does_not_trust_by_accident(cli):
    project(HOSTILE)
    assert cli.json("config", "trust", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert cli.json("config", "trusted")["projects"] == []
    cli.run("config", "trust", "--yes", "nowhere", code=Exit.LOCAL)


def test_a_trusted_file_still_cannot_change_a_pin_of_the_user(cli):
    project(f'[context.acme]\nhub = "https://evil.example"\nhub_pk = "{OTHER}"\n')
    cli.run("config", "trust", "--yes")
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.CONFIG"


def test_only_the_current_directory_counts(cli):
    project(HOSTILE)
    Path("below").mkdir()
    os.chdir("below")
    assert cli.json("config", "show")["hub"] == "http://acme.example"


def test_a_damaged_store_of_trust_is_named_and_trusts_nothing(cli):
    project(HOSTILE)
    cli.run("config", "trust", "--yes")
    store = cli.root / "trusted.json"
    assert store.stat().st_mode & 0o077 == 0
    for text in ("nonsense", "[" * 100_000, "{}", '{"ver": 1, "projects": {"/a": 1}}'):
        store.write_text(text)
        error = cli.json("config", "show", code=Exit.LOCAL)
        assert error["code"] == "E.LOCAL.CONFIG"
        assert "trusted.json" in error["message"]


def test_store(tmp_path):
    store = tmp_path / "trusted.json"
    file = ConfigFile(Path("/w/veen.toml"), {"mode": "light"}, {}, True, "ab")
    trust(store, file)
    assert read_trusted(store) == {"/w/veen.toml": "ab"}
    check_trust(file, read_trusted(store))
    assert untrust(store, file.path)
    assert not untrust(store, file.path)
    with pytest.raises(SettingsError):
        check_trust(file, read_trusted(store))
    assert json.loads(store.read_text()) == {"projects": {}, "ver": 1}


# --- whose file it is ----------------------------------------------------------------------------------------


def test_a_file_that_anybody_may_change_is_refused_trusted_or_not(cli):
    path = project('current_context = "dev"\n')
    path.chmod(0o666)
    error = cli.json("config", "show", code=Exit.LOCAL)
    assert (error["code"], error["hint"]) == ("E.LOCAL.UNTRUSTED", f"chmod o-w '{path}'")
    assert cli.json("config", "trust", "--yes", code=Exit.LOCAL)["code"] == "E.LOCAL.UNTRUSTED"
    path.chmod(0o664)
    assert cli.json("config", "show")["context"] == "dev"


def test_a_file_of_another_user_is_refused(cli, monkeypatch):
    project('current_context = "dev"\n')
    owner = Path("veen.toml").stat().st_uid
    if owner == 0:  # root's files are accepted from everybody: give this one away
        os.chown("veen.toml", 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    error = cli.json("config", "show", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.UNTRUSTED"
    assert "another user" in error["cause"]


def test_a_named_pipe_stops_no_command(cli):
    os.mkfifo("veen.toml")
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.CONFIG"


def test_a_file_that_nests_without_end_is_named(cli):
    project("a = " + "[" * 100_000)
    assert cli.json("config", "show", code=Exit.LOCAL)["code"] == "E.LOCAL.CONFIG"


def test_escapes_in_a_project_file_do_not_reach_the_terminal(cli):
    project('[context.a]\nprofile = "x"\ntoken_file = "\\u001b[31mred"\n')
    assert "\x1b" not in cli.invoke("config", "show").output
    assert "\x1b" not in cli.invoke("config", "trust", "--yes").output


def test_the_doctor_names_an_untrusted_file(cli):
    project(HOSTILE)
    report = cli.json("doctor", "--offline", code=Exit.LOCAL)
    assert any("not trusted" in finding["what"] and "evil.example" in finding["what"] for finding in report["findings"])
