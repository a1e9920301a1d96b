"""Sources by configuration: every slip is named, and another package may bring a kind of its own."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from veen.client.errors import LocalError, UnknownStream
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.products.recorder.adapters.registry import GROUP, SourceConfig, SourceInvalid, adapter_of, kinds
from veen.products.recorder.agent import AgentConfig
from veen.products.recorder.redaction import Redactor, RuleInvalid

FILE = {"id": "a", "kind": "file", "stream": "record/app/web", "path": "/var/log/a.log"}


def config(*sources, **agent):
    return AgentConfig.of({"agent": agent, "source": list(sources)})


def test_sources_get_their_adapters():
    ring = Keyring.of([StreamKeys.create("record/app/web").for_writers()])
    tables = [
        FILE,
        {"id": "b", "kind": "syslog", "stream": "record/app/web", "transport": "udp", "listen": "127.0.0.1:0"},
        {"id": "c", "kind": "otlp", "stream": "record/app/web"},
        {"id": "d", "kind": "kubernetes", "stream": "record/app/web", "listen": "[::1]:8443"},
        {"id": "e", "kind": "journald", "stream": "record/app/web", "options": ["--unit=ssh"]},
        {"id": "f", "kind": "webhook", "stream": "record/app/web", "redact": [".token"]},
    ]
    opened = config(*tables, redact=[".password"]).open_sources(ring)
    assert [(source.adapter.id, source.adapter.kind) for source in opened] == [
        ("a", "file"), ("b", "syslog"), ("c", "otlp"), ("d", "kubernetes"), ("e", "journald"), ("f", "webhook"),
    ]  # fmt: skip
    with pytest.raises(UnknownStream):
        config({**FILE, "stream": "record/app/other"}).open_sources(ring)


@pytest.mark.parametrize(
    ("source", "agent", "word"),
    [
        ({**FILE, "pth": "x"}, {}, "pth"),
        ({key: value for key, value in FILE.items() if key != "path"}, {}, "path is missing"),
        ({**FILE, "kind": "carrier-pigeon"}, {}, "carrier-pigeon"),
        ({**FILE, "id": ""}, {}, "id is missing"),
        ({**FILE, "follow": "yes"}, {}, "follow is true or false"),
        ({"id": "x", "kind": "syslog", "stream": "s", "listen": "nowhere"}, {}, "HOST:PORT"),
        (FILE, {"spool_byte": 1}, "spool_byte"),
        (FILE, {"spool_bytes": 0}, "above 0"),
        (FILE, {"redact": ".a"}, "list of rules"),
    ],
)
def test_a_slip_is_named(source, agent, word):
    with pytest.raises(SourceInvalid, match=word):
        [adapter_of(entry) for entry, _, _ in config(source, **agent).sources]


def test_two_sources_with_one_id_and_broken_files_are_refused(tmp_path):
    with pytest.raises(SourceInvalid, match="same id"):
        config(FILE, FILE)
    (tmp_path / "agent.toml").write_bytes(b"\xff[agent")
    with pytest.raises(SourceInvalid, match=r"agent\.toml"):
        AgentConfig.read(tmp_path / "agent.toml")


@pytest.mark.parametrize("rule", ["password", ".", "re:(", ""])
def test_a_rule_that_cannot_be_followed_is_refused(rule):
    with pytest.raises(RuleInvalid):
        Redactor.of([rule])


def test_another_package_brings_a_kind_of_its_own(monkeypatch):
    class Pigeon:
        kind = "pigeon"

        def __init__(self, source):
            self.id, self.loft = source.id, source.text("loft")

        async def run(self, sink):
            pass

    module = ModuleType("pigeon_post")
    module.Pigeon, module.broken = Pigeon, lambda source: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pigeon_post", module)
    points = [
        EntryPoint("pigeon", "pigeon_post:Pigeon", GROUP), EntryPoint("broken", "pigeon_post:broken", GROUP),
    ]  # fmt: skip
    instance = adapter_of(SourceConfig("p", "pigeon", {"loft": "roof"}), points)
    assert isinstance(instance, Pigeon)
    assert instance.loft == "roof"
    assert "pigeon" in kinds(points)
    with pytest.raises(LocalError, match="ZeroDivisionError"):
        adapter_of(SourceConfig("p", "broken", {}), points)
    with pytest.raises(LocalError, match="loft is missing"):
        adapter_of(SourceConfig("p", "pigeon", {}), points)
