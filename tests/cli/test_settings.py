"""Configuration: precedence, contexts, pins that stay pins, and files that keep their comments."""

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.cli.shared.failures import failure_of
from veen.cli.shared.output import Exit
from veen.client.config.file import ConfigFile, check_value, read
from veen.client.config.projects import change, remove_context
from veen.client.config.settings import ENVIRONMENT, resolve
from veen.client.errors import SettingsError

PIN, OTHER = f"ed25519:{'a' * 64}", f"ed25519:{'b' * 64}"
USER = ConfigFile(
    Path("/home/u/config.toml"),
    {"current_context": "acme", "identity": "alice", "mode": "light"},
    {
        "acme": {"hub": "https://acme.example", "hub_pk": PIN, "token_file": "/home/u/token"},
        "dev": {"hub": "http://127.0.0.1:1", "hub_pk": OTHER, "identity": "bob"},
    },
)
NOTHING = ConfigFile(Path("/work/veen.toml"), project=True)


def settings(flags=None, env=None, project=NOTHING, user=USER):
    return resolve(flags or {}, env or {}, project, user)


def values(**options):
    return {name: value for name, value, _ in settings(**options).shown() if value is not None}


def test_a_flag_outranks_a_variable_outranks_the_project_outranks_the_user_outranks_the_default():
    project = ConfigFile(NOTHING.path, {"identity": "carol", "mode": "full"}, {}, True)
    flags, env = {"identity": "dave"}, {"VEEN_IDENTITY": "erin", "VEEN_MODE": "full"}
    assert settings(flags, env, project).identity.value == "dave"
    assert settings({}, env, project).identity.value == "erin"
    assert settings({}, {}, project).identity.value == "carol"
    assert settings().identity.value == "alice"
    assert settings(user=NOTHING).mode.value == "full"
    assert settings({}, env, project).mode.origin == "VEEN_MODE"
    assert settings({}, {}, project).mode.origin == "./veen.toml"
    assert settings().mode.origin == "/home/u/config.toml"
    assert settings(user=NOTHING).mode.origin == "default"
    assert settings(flags).identity.origin == "--identity"
    assert settings({"hub_pk": PIN}).hub_pk.origin == "--pin"


def test_every_setting_has_a_variable():
    assert {name for name, _, _ in settings().shown()} == set(ENVIRONMENT)


def test_a_context_gives_its_values_and_says_so():
    resolved = settings()
    assert (resolved.hub.value, resolved.hub_pk.value) == ("https://acme.example", PIN)
    assert resolved.hub.origin == "/home/u/config.toml [context.acme]"
    assert resolved.identity.value == "alice"
    assert settings({"context": "dev"}).identity.value == "bob"
    assert settings({}, {"VEEN_CONTEXT": "dev"}).hub_pk.value == OTHER


def test_a_token_or_a_pin_of_one_hub_is_never_used_with_another():
    """--hub alone leaves the chosen context aside."""
    assert values(flags={"hub": "https://evil.example"}) == {
        "hub": "https://evil.example",
        "identity": "alice",
        "witnesses": "require",
        "insecure_http": False,
        "make_keys": False,
        "mode": "light",
        "remember_streams": True,
        "wait": 5,
        "timeout": 30,
    }
    assert settings({}, {"VEEN_HUB": "https://evil.example"}).token_file.value is None


def test_a_hub_that_some_context_names_is_that_context():
    resolved = settings({"hub": "http://127.0.0.1:1/"})
    assert (resolved.context.value, resolved.hub_pk.value) == ("dev", OTHER)
    assert settings({"hub": "https://acme.example"}).token_file.value == "/home/u/token"


def test_a_context_on_the_command_line_outranks_a_hub_in_the_environment():
    resolved = settings({"context": "dev"}, {"VEEN_HUB": "https://evil.example"})
    assert (resolved.hub.value, resolved.hub_pk.value) == ("http://127.0.0.1:1", OTHER)


def test_both_on_the_command_line_keep_the_pin():
    """The same hub at another address: whoever answers there must have the pinned key."""
    resolved = settings({"context": "acme", "hub": "https://10.0.0.1"})
    assert (resolved.hub.value, resolved.hub_pk.value) == ("https://10.0.0.1", PIN)


def test_a_project_cannot_change_the_pin_of_a_context():
    project = ConfigFile(NOTHING.path, {}, {"acme": {"hub": "https://evil.example", "hub_pk": OTHER}}, True)
    with pytest.raises(SettingsError) as caught:
        settings(project=project)
    assert failure_of(caught.value).exit_code is Exit.LOCAL
    assert PIN in caught.value.cause
    silent = ConfigFile(NOTHING.path, {}, {"acme": {"hub": "https://evil.example"}}, True)
    with pytest.raises(SettingsError):
        settings(project=silent)


def test_a_project_may_bring_contexts_of_its_own():
    project = ConfigFile(NOTHING.path, {"current_context": "ci"}, {"ci": {"hub": "https://ci", "hub_pk": PIN}}, True)
    resolved = settings(project=project)
    assert (resolved.context.value, resolved.hub.origin) == ("ci", "./veen.toml [context.ci]")
    assert resolved.token_file.value is None  # taken whole: nothing of the user's context is mixed in


def test_a_context_that_does_not_exist_is_told_with_its_origin():
    with pytest.raises(SettingsError) as caught:
        settings({}, {"VEEN_CONTEXT": "nowhere"})
    assert caught.value.code == "E.LOCAL.CONTEXT"
    assert "VEEN_CONTEXT" in caught.value.cause


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("context.a.hub", "ftp://x"),
        ("context.a.hub", "https://"),
        ("context.a.hub", "http://user:secret@host"),
        ("context.a.hub", "http://host:port"),
        ("context.a.hub_pk", "ed25519:abc"),
        ("context.a.hub_pk", "a" * 63),
        ("context.a b.hub", "http://x"),
        ("context.a.nonsense", "1"),
        ("mode", "fast"),
        ("remember_streams", "maybe"),
        ("wait", "-1"),
        ("wait", "soon"),
        ("timeout", "0"),
        ("current_context", "a.b"),
        ("identity", ""),
        ("nonsense", "1"),
    ],
)
def test_values_are_checked_where_they_come_in(key, text):
    with pytest.raises(ValueError, match=r"."):
        check_value(key, text)


def test_a_bad_variable_is_a_usage_error_that_names_it():
    with pytest.raises(SettingsError) as caught:
        settings({}, {"VEEN_PIN": "nonsense"})
    assert failure_of(caught.value).exit_code is Exit.USAGE
    assert "VEEN_PIN" in caught.value.what


# --- files -----------------------------------------------------------------------------------------------------

TEXT = """\
# my hubs
current_context = "acme"   # the usual one

[context.acme]
hub = "https://acme.example"
# from the operator's card
hub_pk = "ed25519:{pin}"

[context.dev]
hub = "http://127.0.0.1:1"
""".replace("{pin}", "a" * 64)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "veen" / "config.toml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def test_a_change_keeps_comments_and_order(path):
    change(
        path,
        {"context.acme.identity": "alice", "mode": "light", "context.dev.hub_pk": PIN, "context.new.hub": "http://n"},
    )
    text = path.read_text()
    assert "# my hubs" in text
    assert "# from the operator's card" in text
    assert text.index("[context.acme]") < text.index('identity = "alice"') < text.index("[context.dev]")
    config = read(path)
    assert config.top == {"current_context": "acme", "mode": "light"}
    assert config.contexts["acme"]["identity"] == "alice"
    assert config.contexts["dev"]["hub_pk"] == PIN
    assert config.contexts["new"] == {"hub": "http://n"}


def test_a_value_is_replaced_and_taken_out(path):
    change(path, {"current_context": "dev", "context.acme.hub_pk": None})
    config = read(path)
    assert config.top["current_context"] == "dev"
    assert config.contexts["acme"] == {"hub": "https://acme.example"}
    change(path, {"context.acme.hub_pk": None})  # nothing to take out is fine
    assert read(path) == config


def test_removing_a_context_removes_the_choice_of_it(path):
    remove_context(path, "acme")
    assert read(path).top == {}
    assert list(read(path).contexts) == ["dev"]
    assert "# my hubs" in path.read_text()


def test_the_last_context_can_be_removed_too(path):
    for name in ("acme", "dev"):
        remove_context(path, name)
    assert read(path).contexts == {}


def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "new" / "config.toml"
    change(path, {"mode": "light", "wait": 7})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read(path).top == {"mode": "light", "wait": 7}


@pytest.mark.parametrize(
    "text",
    [
        'context = { acme = { hub = "http://a" } } # mine\n',
        '# mine\n[context]\nacme = { hub = "http://a" }\n',
        '[context."acme"]\n# mine\nhub = "http://a"\n',
    ],
)
def test_every_way_to_write_a_context_is_edited_in_place(path, text):
    path.write_text(text)
    change(path, {"context.acme.hub": "http://b", "context.acme.identity": "alice", "wait": 7})
    assert read(path).contexts["acme"] == {"hub": "http://b", "identity": "alice"}
    assert read(path).top == {"wait": 7}
    assert "# mine" in path.read_text()


@pytest.mark.parametrize("text", ['context.acme.hub = "http://a"\n', '[context.acme]\nhub = "http://a"\n[context]\n'])
def test_a_form_that_does_not_read_back_as_intended_is_left_as_it_is(path, text):
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        change(path, {"context.acme.hub": "http://b", "mode": "light", "context.new.hub": "http://n"})
    assert "by hand" in caught.value.hint
    assert path.read_text() == text


@pytest.mark.parametrize(
    "data",
    [b"x = ", b"\xff\xfe", b"mode = 3", b"nonsense = 1", b"context = 1", b"[context.a]\nhub = 1", b"[context.'a b']"],
)
def test_a_file_that_cannot_be_used_is_named(path, data):
    path.write_bytes(data)
    with pytest.raises(SettingsError) as caught:
        read(path)
    assert caught.value.code == "E.LOCAL.CONFIG"
    assert str(path) in caught.value.what
    with pytest.raises(SettingsError):
        change(path, {"mode": "full"})
    assert path.read_bytes() == data


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_any_name_survives_the_file(tmp_path_factory, name):
    path = tmp_path_factory.mktemp("config") / "config.toml"
    if not name.isprintable():
        return
    change(path, {"identity": name})
    assert tomllib.loads(path.read_text())["identity"] == name


def test_files_are_relative_to_the_configuration(path):
    path.write_text('[context.a]\nhub = "http://a"\nca_file = "ca.pem"\ntoken_file = "/etc/token"\n')
    table = read(path).contexts["a"]
    assert table["ca_file"] == str(path.parent / "ca.pem")
    assert table["token_file"] == "/etc/token"


@pytest.mark.parametrize("file", ["/etc/passwd", "../token", "~/.ssh/id_ed25519", "link"])
def test_a_project_cannot_have_files_of_the_user_sent_to_its_hub(tmp_path, file):
    """A cloned repository with a veen.toml must not turn ~/.ssh/id_ed25519 into a bearer token."""
    path = tmp_path / "project" / "veen.toml"
    path.parent.mkdir()
    (path.parent / "link").symlink_to("/etc/passwd")
    path.write_text(f'[context.a]\nhub = "https://evil.example"\ntoken_file = "{file}"\n')
    if file.startswith("~"):  # not expanded: a directory of that name inside the project
        assert read(path, project=True).contexts["a"]["token_file"] == str(path.parent / file)
    else:
        with pytest.raises(SettingsError, match=r"outside the directory"):
            read(path, project=True)


@pytest.mark.slow
def test_two_changes_at_once_lose_nothing(tmp_path):
    path = tmp_path / "config.toml"
    program = (
        "import sys; from pathlib import Path; from veen.client.config.projects import change\n"
        "for n in range(20): change(Path(sys.argv[1]), {f'context.{sys.argv[2]}{n}.hub': 'http://h'})"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name], env=os.environ) for name in ("a", "b", "c")
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert len(read(path).contexts) == 60
