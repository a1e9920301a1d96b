"""Configuration: who wins, and every way a hub refuses to start from it."""

import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from veen import native
from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.profile import PRESETS, Profile
from veen.hub.process.config import SETTINGS, ConfigError, HubConfig, load
from veen.hub.process.settings import Issuer

ISSUER = SigningKey(b"\x09" * 32)
KEY = ISSUER.public.hex()


def write(tmp_path, text, name="hub.toml"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def refused(tmp_path, text, name="hub.toml", **more):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text, name), **{"flags": {"data_dir": "d"}, **more})
    error = caught.value
    assert error.what
    assert error.remedy
    assert pickle.loads(pickle.dumps(error)).args == error.args  # noqa: S301 - our own bytes
    return error


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path):
    file = write(tmp_path, 'data_dir = "d"\n[listen]\nport = 1\nhost = "localhost"\n[log]\nlevel = "error"\n')
    environ = {"VEEN_LISTEN_PORT": "2", "VEEN_LOG_LEVEL": "warn"}
    config = load(file, environ, {"listen.port": "3"})
    assert (config.listen.port, config.log.level, config.listen.host, config.role) == (
        3,
        "warning",
        "localhost",
        "tenant",
    )
    origins = {key: origin for key, _, origin in config.rows()}
    assert origins["listen.port"] == "flag --port"
    assert origins["log.level"] == "variable VEEN_LOG_LEVEL"
    assert origins["listen.host"] == str(file)
    assert origins["role"] == "default"


def test_toml_and_yaml_say_the_same(tmp_path):
    toml = write(
        tmp_path,
        f'data_dir = "d"\nrole = "authority"\n[admission]\nprofiles = ["ref"]\ntrusted_issuers = ["{KEY}"]\n'
        '[engine]\nmin_free_bytes = "1GiB"\n[retention]\npayloads = "30d"\n[limits]\nmax_msg_bytes = 4096\n',
    )
    yaml = write(
        tmp_path,
        f'data_dir: d\nhub_profile: authority\nadmission:\n  profiles: [ref]\n  trusted_issuers: ["{KEY}"]\n'
        "engine: {min_free_bytes: 1GiB}\nretention: {payloads: 30d}\nlimits: {max_msg_bytes: 4096}\nlog:\n",
        "hub.yaml",
    )
    assert load(toml) == load(yaml)
    assert load(toml).retention.payloads == 30 * 86_400
    assert load(toml).limits.max_msg_bytes == 4096


def test_relative_paths_start_from_the_file_or_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    file = write(tmp_path / "etc", 'data_dir = "data"\n')
    assert load(file).data_dir == tmp_path / "etc" / "data"
    assert load(file, {"VEEN_DATA_DIR": "data"}).data_dir == tmp_path / "data"


def test_every_default_is_what_its_own_kind_reads_back(tmp_path):
    """`shown` writes values as a file would hold them, so reading them again changes nothing."""
    config = load(None, {}, {"data_dir": str(tmp_path)})
    for (key, value, _), setting in zip(config.rows(), SETTINGS, strict=True):
        again = "" if value is None and key != "engine.workers" else "auto" if value is None else value
        assert setting.kind.read(again, False, tmp_path) == config.value_of(key), key


def test_the_environment_reaches_every_key(tmp_path):
    texts = {"engine.workers": "auto"}
    environ = {}
    for setting in SETTINGS:
        shown = {key: value for key, value, _ in HubConfig(data_dir=tmp_path).rows()}[setting.key]
        text = ",".join(shown) if isinstance(shown, list) else str(shown if shown is not None else "").lower()
        environ[setting.variable] = texts.get(setting.key, text)
    environ["VEEN_DATA_DIR"] = str(tmp_path)
    assert load(None, environ) == HubConfig(data_dir=tmp_path)


def test_a_foreign_variable_is_nobodys_business(tmp_path):
    """Kubernetes puts VEEN_HUB_PORT there for a Service called veen-hub."""
    assert load(None, {"VEEN_HUB_PORT": "tcp://10.0.0.1:8080", "VEEN_DATA_DIR": str(tmp_path)}).listen.port == 8080


@pytest.mark.parametrize(
    ("text", "key", "named"),
    [
        ("[listen]\nprot = 1\n", "listen.prot", "listen.port"),
        ("port = 1\n", "port", "listen.port"),
        ("[limits]\nmax_msg_byte = 1\n", "limits.max_msg_byte", "limits.max_msg_bytes"),
        ("[auth]\nadmin_tokens = ['secret']\n", "auth.admin_tokens", "auth.admin_token_files"),
        ("[liste]\nport = 1\n", "liste", "listen"),
        ("frobnicate = true\n", "frobnicate", "docs/configuration.md"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(tmp_path, text, key, named):
    error = refused(tmp_path, text)
    assert error.key == key
    assert error.source.endswith("hub.toml")
    assert named in error.remedy


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[listen]\nport = 65536\n", "listen.port"),
        ("[listen]\nport = true\n", "listen.port"),
        ("[listen]\nport = '80'\n", "listen.port"),
        ("[listen]\nhost = 1\n", "listen.host"),
        ("listen = 1\n", "listen"),
        ("role = 'king'\n", "role"),
        ("force_plain_http = 'yes'\n", "force_plain_http"),
        ("[engine]\nmax_queue = 0\n", "engine.max_queue"),
        ("[metrics]\nstreams = 'orders'\n", "metrics.streams"),
        ("[metrics]\nstreams = ['']\n", "metrics.streams"),
        ("[metrics]\nstreams = [7]\n", "metrics.streams"),
        ("[metrics]\nstreams = ['a', 'a']\n", "metrics.streams"),
        (f"[metrics]\nstreams = {[str(n) for n in range(101)]}\n", "metrics.streams"),
        ("[engine]\nworkers = 'many'\n", "engine.workers"),
        ("[engine]\nmin_free_bytes = '1 GB'\n", "engine.min_free_bytes"),
        ("[retention]\npayloads = '1y'\n", "retention.payloads"),
        ("[retention]\npayloads = -1\n", "retention.payloads"),
        ("[retention]\nreceipts = '1d'\n", "retention.receipts"),
        ("[retention]\npayloads = '2d'\nreceipts = '1d'\n", "retention.receipts"),
        ("[log]\nlevel = 'loud'\n", "log.level"),
        ("[log]\nsubmits = 'some'\n", "log.submits"),
        ("[admission]\nprofiles = []\n", "admission.profiles"),
        ("[admission]\nprofiles = ['fast']\n", "admission.profiles"),
        ("[admission]\nprofiles = [{epoch_sec = 1}]\n", "admission.profiles"),
        ("[admission]\nprofiles = [{epoch_sec = -1, pad_block = 0}]\n", "admission.profiles"),
        ("[admission]\nprofiles = ['ref', 'bulk']\n", "admission.profiles"),
        ("[admission]\nprofiles = ['ref']\nstream_scope = 'open'\n", "admission.stream_scope"),
        ("[admission]\ntrusted_issuers = ['all']\n", "admission.trusted_issuers"),
        ("[admission]\ntrusted_issuers = '*'\n", "admission.trusted_issuers"),
        ("[admission]\ntrusted_issuers = [{issuer = '00'}]\n", "admission.trusted_issuers"),
        ("[admission]\nstreams = ['']\n", "admission.streams"),
        ("[admission]\nstreams = [1]\n", "admission.streams"),
        ("[admission]\ndenied_clients = ['ab']\n", "admission.denied_clients"),
        ("[admission]\npow_difficulty = 64\n", "admission.pow_difficulty"),
        ("[tls]\ncert = 'c.pem'\n", "tls.key"),
        ("[tls]\nkey = 'k.pem'\n", "tls.cert"),
        ("[tls]\nclient_ca = 'ca.pem'\n", "tls.client_ca"),
        ("[listen]\nhost = '0.0.0.0'\n", "listen.host"),
        ("[listen]\nhost = 'hub.example'\n", "listen.host"),
        ("[limits]\nmax_chunk_bytes = 100\n", "limits.max_chunk_bytes"),
        ("[limits]\ncompression = 'gzip'\n", "limits.compression"),
        ("[admission]\ntoken_files = ['no-such-file']\n", "admission.token_files"),
    ],
)
def test_a_bad_value_is_refused_by_key(tmp_path, text, key):
    assert refused(tmp_path, text).key == key


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize("name", ["max_msg_bytes", "max_hdr_bytes", "max_body_bytes", "max_attachments_per_msg"])
def test_a_limit_above_the_protocols_is_refused(tmp_path, name):
    """spec §14.1: deployments may lower a maximum, never raise it."""
    error = refused(tmp_path, f"[limits]\n{name} = 1048577\n")
    assert error.key == f"limits.{name}"
    assert "above the maximum" in error.what


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[listen\n", "hub.toml"),
        ("a: [\n", "hub.yaml"),
        ("- 1\n", "hub.yaml"),
        ("!!python/object:os.system x", "hub.yml"),
    ],
)
def test_a_file_that_cannot_be_parsed(tmp_path, text, name):
    assert refused(tmp_path, text, name).source.endswith(name)


def test_a_missing_file_and_a_missing_data_dir(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="data_dir: is required"):
        load()


def test_a_bad_variable_names_itself(tmp_path):
    with pytest.raises(ConfigError, match=r"variable VEEN_LISTEN_PORT: listen\.port: expected a whole number"):
        load(None, {"VEEN_DATA_DIR": "d", "VEEN_LISTEN_PORT": "http"})


@pytest.mark.parametrize(
    "flags",
    [
        {"listen.host": "0.0.0.0", "force_plain_http": "true"},  # noqa: S104
        {"listen.host": "0.0.0.0", "tls.cert": "c", "tls.key": "k"},  # noqa: S104
        {"listen.host": "::1"},
    ],
)
def test_plain_http_beyond_loopback_must_be_spelled_out(flags):
    """D-67."""
    assert load(None, {}, {"data_dir": "d", **flags}).listen.host == flags["listen.host"]


def test_what_becomes_of_admission(tmp_path):
    token = CapToken.issue(ISSUER, b"\x01" * 32, [stream_id_of("a")], ttl=60)
    (tmp_path / "a.cap").write_bytes(token.to_bytes())
    config = load(
        write(
            tmp_path,
            "data_dir = 'd'\n[admission]\ncapability_gating = false\n"
            f"trusted_issuers = ['ed25519:{KEY}', {{issuer = '{'ab' * 32}', streams = ['a', '{'cd' * 32}']}}]\n"
            "token_files = ['a.cap']\nstreams = ['b']\nprofiles = [{epoch_sec = 0, pad_block = 1024}, 'bulk']\n",
        )
    )
    policy = config.policy()
    assert not policy.capability_gating
    assert policy.trusted_issuers == {
        ISSUER.public: None,
        b"\xab" * 32: frozenset({stream_id_of("a"), b"\xcd" * 32}),
    }
    assert not policy.trust_any_issuer
    assert policy.preloaded == {token.auth_ref(): token}
    assert policy.streams == {stream_id_of("b")}
    assert policy.profiles == (Profile(epoch_sec=0, pad_block=1024), PRESETS["bulk"])
    shown = {key: value for key, value, _ in config.rows()}
    assert shown["admission.profiles"] == [{"epoch_sec": 0, "pad_block": 1024}, "bulk"]
    assert shown["admission.trusted_issuers"][0] == KEY


def test_anybody_is_trusted_only_where_it_is_written():
    """D-45."""
    flags = {"data_dir": "d", "admission.trusted_issuers": "*"}
    assert load(None, {}, flags).admission.trusted_issuers == (Issuer(None),)
    assert load(None, {}, flags).policy().trust_any_issuer
    assert not load(None, {}, {"data_dir": "d"}).policy().trust_any_issuer


def test_a_token_file_that_is_none(tmp_path):
    (tmp_path / "bad.cap").write_bytes(b"\x80")
    assert "invalid capability token" in refused(tmp_path, "[admission]\ntoken_files = ['bad.cap']\n").what


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "ünïcödé-tökén-ünïcödé"])
def test_a_bearer_token_must_be_one(tmp_path, text):
    (tmp_path / "token").write_text(text, "utf-8")
    (tmp_path / "token").chmod(0o600)
    config = load(None, {}, {"data_dir": "d", "auth.admin_token_files": str(tmp_path / "token")})
    with pytest.raises(ConfigError) as caught:
        config.tokens("admin_token_files")
    assert text not in str(caught.value) or not text


PUBLIC = ("0.0.0.0", "::", "192.0.2.1", "hub.example")  # noqa: S104 - what must be refused


@pytest.mark.parametrize("host", PUBLIC)
@pytest.mark.parametrize("place", ["file", "variable", "flag"])
def test_a_hub_for_trying_things_does_not_listen_beyond_loopback(tmp_path, host, place):
    """It admits messages of anybody who can connect, so nobody else may."""
    (tmp_path / "key").write_text("")
    text = "force_plain_http = true\n" + (f'[listen]\nhost = "{host}"\n' if place == "file" else "")
    environ = {"VEEN_LISTEN_HOST": host} if place == "variable" else {}
    flags = {"data_dir": "d", "dev": "true", **({"listen.host": host} if place == "flag" else {})}
    error = refused(tmp_path, text, environ=environ, flags=flags)
    assert error.key == "listen.host"
    assert "--dev" in error.what
    tls = f"[tls]\ncert = '{tmp_path / 'cert'}'\nkey = '{tmp_path / 'key'}'\n"
    assert refused(tmp_path, text + tls, environ=environ, flags=flags).key == "listen.host"
    assert load(write(tmp_path, text), environ, {**flags, "dev": "false"}).listen.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_hub_for_trying_things_listens_on_loopback(tmp_path, host):
    assert load(None, {}, {"data_dir": "d", "dev": "true", "listen.host": host}).dev


def test_a_bearer_token_that_others_may_read_is_not_used(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o640)
    config = load(None, {}, {"data_dir": "d", "auth.admin_token_files": str(tmp_path / "token")})
    with pytest.raises(ConfigError, match="mode 0640") as caught:
        config.tokens("admin_token_files")
    assert "chmod 600" in str(caught.value.args)
    assert "0123456789abcdef" not in str(caught.value)


def test_a_bearer_token_is_read_without_the_white_space(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    config = load(None, {}, {"data_dir": "d", "auth.read_token_files": str(tmp_path / "token")})
    assert config.tokens("read_token_files") == (b"0123456789abcdef",)
    assert config.tokens("admin_token_files") == ()


def test_the_documentation_lists_every_key(request):
    text = (Path(request.config.rootpath) / "docs" / "configuration.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z0-9_.]+)` \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    reloads = {True: "restart", False: "at once"}
    assert [(key, when, about) for key, _, when, about in listed] == [
        (setting.key, reloads[setting.restart], setting.about) for setting in SETTINGS
    ]


def test_the_example_in_the_documentation_loads(request, tmp_path):
    text = (Path(request.config.rootpath) / "docs" / "configuration.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert load(write(tmp_path, example)).limits.max_msg_bytes == 65_536


def test_auto_workers_are_spare_cores_for_processes_and_all_cores_for_threads(monkeypatch):
    """Verifier processes leave a core to the ordering thread; threads of the native module share what there is."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    config = load(None, {}, {"data_dir": "x"})
    monkeypatch.setattr(native, "LOADED", native.Loaded(None, "absent", "Python"))
    assert config.worker_count() == 7
    monkeypatch.setattr(native, "LOADED", native.load({}, lambda _: fitting_module()))
    assert config.worker_count() == 8
    assert load(None, {}, {"data_dir": "x", "engine.workers": "3"}).worker_count() == 3


def fitting_module():
    return SimpleNamespace(__version__=native.VERSION, cpu_features=list)
