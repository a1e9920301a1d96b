"""Kinds of sources and their configuration: built-in adapters, and those of other packages.

A package adds an adapter by an entry point of the group `veen.recorder.adapters`: its name is the kind, its value a
function (SourceConfig) -> Adapter. A source is a table of the agent's configuration:

    [[source]]
    id = "access-log"            # unique in the agent, and stable: positions are stored under it
    kind = "file"
    stream = "record/app/http"
    path = "/var/log/nginx/access.log"
"""

import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from veen.client.errors import LocalError
from veen.client.home import read_secret
from veen.io.addresses import is_loopback
from veen.products.recorder.events import Selectors
from veen.products.recorder.sink import Adapter

GROUP: Final = "veen.recorder.adapters"
_MAX_TOKEN: Final = 4096


class SourceInvalid(LocalError, code="SDR.SOURCE"):
    """The configuration of a source is invalid."""


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """The table of one source. Keys that the adapter does not know are refused, so that a typing error is noticed."""

    id: str
    kind: str
    options: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text. Raise SourceInvalid if it is missing and has no default."""
        value = self.options.get(name, default)
        if not isinstance(value, str):
            raise SourceInvalid(f"source {self.id!r}: {name} is {'missing' if value is None else 'no text'}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.options.get(name, default)
        if not isinstance(value, bool):
            raise SourceInvalid(f"source {self.id!r}: {name} is true or false")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, empty if the option is missing."""
        value = self.options.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise SourceInvalid(f"source {self.id!r}: {name} is a list of texts")
        return tuple(value)

    def address(self, default_port: int) -> tuple[str, int]:
        """Return host and port of `listen = "127.0.0.1:4318"`."""
        host, _, port = self.text("listen", f"127.0.0.1:{default_port}").rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise SourceInvalid(f"source {self.id!r}: listen is HOST:PORT")
        return host.strip("[]") or "127.0.0.1", int(port)

    def selectors(self, defaults: Selectors | None = None) -> Selectors:
        """Return the options that select subject, type, origin and time of a record."""
        base = defaults or Selectors()
        return Selectors(
            subject=self.text("subject", base.subject),
            event_type=self.text("type", base.event_type),
            origin=self.text("origin", base.origin),
            time=self.text("time", base.time),
        )

    def tokens(self) -> tuple[str, ...] | None:
        """Return the bearer tokens of senders, one per line of a file that only its owner can read; None without a
        file.
        """
        if "token_file" not in self.options:
            return None
        text = read_secret(Path(self.text("token_file")), _MAX_TOKEN).decode(errors="replace")
        tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
        if not tokens:
            raise SourceInvalid(f"source {self.id!r}: token_file has no token")
        return tokens

    def secret(self) -> bytes | None:
        """Return the secret of GitHub's signatures, from a file that only its owner can read; None without a file."""
        if "secret_file" not in self.options:
            return None
        secret = read_secret(Path(self.text("secret_file")), _MAX_TOKEN).strip()
        if not secret:
            raise SourceInvalid(f"source {self.id!r}: secret_file is empty")
        return secret

    def check_open(self, *, is_encrypted: bool, has_credential: bool) -> None:
        """Refuse a listener beyond loopback that anybody can write to or eavesdrop on, as the hub does (D-67)."""
        host, _ = self.address(0)
        if is_loopback(host) or self.flag("open_to_anybody", False) or (is_encrypted and has_credential):
            return
        lacks = [
            name
            for name, is_there in (
                ("TLS (cert and key)", is_encrypted),
                ("a credential of senders (token_file, secret_file or client_ca)", has_credential),
            )
            if not is_there
        ]
        raise SourceInvalid(
            f"source {self.id!r}: {host} is not loopback, and the listener has no {' and no '.join(lacks)}: anybody who"
            " can connect could record anything. Configure it, listen on 127.0.0.1, or set open_to_anybody = true"
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of `cert` and `key`, or None.

        `client_ca` demands a certificate of that CA from senders.
        """
        if "cert" not in self.options:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.text("cert"), self.text("key", self.text("cert")))
        if "client_ca" in self.options:
            context.load_verify_locations(self.text("client_ca"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _lines(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.lines import Lines

    return Lines(config.id, sys.stdin.buffer, config.selectors())


def _file(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.tail import TailSource

    path = Path(config.text("path"))
    selectors = config.selectors(Selectors(origin=f".origin|{path}"))
    follow, rotated = config.flag("follow", True), config.flag("rotated", False)
    return TailSource(config.id, path, selectors, follow=follow, rotated=rotated)


def _syslog(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.syslog import SyslogTcp, SyslogUdp

    if config.text("transport", "tcp") == "udp":
        config.check_open(is_encrypted=False, has_credential=False)
        return SyslogUdp(config.id, *config.address(5514))
    config.check_open(is_encrypted="cert" in config.options, has_credential="client_ca" in config.options)
    return SyslogTcp(config.id, *config.address(5514), tls=config.tls())


def _journald(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.journald import JournaldSource

    return JournaldSource(config.id, options=config.words("options"), follow=config.flag("follow", True))


def _otlp(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.otlp import Otlp

    host, port = config.address(4318)
    config.check_open(
        is_encrypted="cert" in config.options,
        has_credential="token_file" in config.options or "client_ca" in config.options,
    )
    path, wait = config.text("path", "/v1/logs"), config.flag("wait_receipt", True)
    return Otlp(config.id, host, port, path=path, token=config.tokens(), tls=config.tls(), wait_receipt=wait)


def _webhook(config: SourceConfig) -> Adapter:
    from veen.products.recorder.adapters.webhook import Webhook

    host, port = config.address(8088)
    config.check_open(
        is_encrypted="cert" in config.options,
        has_credential=any(name in config.options for name in ("token_file", "client_ca", "secret_file")),
    )
    form = config.kind
    if form not in ("cloudevents", "webhook", "kubernetes"):
        raise SourceInvalid(f"source {config.id!r}: there is no webhook {form!r}")
    selectors = config.selectors(
        Selectors(subject=".user|.actor|.sender.login|unknown", event_type=".event|.rule|webhook")
    )
    return Webhook(
        config.id, host, port, form, selectors, token=config.tokens(), tls=config.tls(), secret=config.secret()  # type: ignore[arg-type]  # judged above
    )  # fmt: skip


_FIELDS: Final = ("subject", "type", "origin", "time")
_HTTP: Final = ("listen", "token_file", "cert", "key", "client_ca", "open_to_anybody")
# kind -> how it is made, and the keys that it takes besides id, kind, stream and redact
BUILTIN: Final[Mapping[str, tuple[Callable[[SourceConfig], Adapter], tuple[str, ...]]]] = {
    "lines": (_lines, _FIELDS),
    "file": (_file, ("path", "follow", "rotated", *_FIELDS)),
    "syslog": (_syslog, ("listen", "transport", "cert", "key", "client_ca", "open_to_anybody")),
    "journald": (_journald, ("options", "follow")),
    "otlp": (_otlp, ("path", "wait_receipt", *_HTTP)),
    "cloudevents": (_webhook, _HTTP),
    "webhook": (_webhook, (*_HTTP, *_FIELDS, "secret_file")),
    "kubernetes": (_webhook, _HTTP),
}


def kinds(points: Iterable[EntryPoint] | None = None) -> list[str]:
    """Return every kind of source that can be configured here."""
    return sorted({*BUILTIN, *(point.name for point in _points(points))})


def adapter_of(config: SourceConfig, points: Iterable[EntryPoint] | None = None) -> Adapter:
    """Return the adapter of a source. Raise SourceInvalid, which names the error."""
    if config.kind in BUILTIN:
        make, allowed = BUILTIN[config.kind]
        for name in config.options:
            if name not in allowed:
                raise SourceInvalid(
                    f"source {config.id!r}: a {config.kind} source has no {name!r}, but {', '.join(allowed)}"
                )
        return make(config)
    for point in _points(points):
        if point.name == config.kind:
            try:
                adapter: Adapter = point.load()(config)
            except LocalError:
                raise
            except Exception as exc:  # foreign code may raise anything
                raise SourceInvalid(f"source {config.id!r}: {point.value}: {type(exc).__name__}: {exc}") from exc
            return adapter
    raise SourceInvalid(f"source {config.id!r}: there is no kind {config.kind!r}; there are {', '.join(kinds(points))}")


def _points(points: Iterable[EntryPoint] | None) -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP) if points is None else points, key=lambda point: point.name)
