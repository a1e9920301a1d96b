"""Asking a running hub over HTTP: its JSON form, one request per connection, nothing but the standard library."""

import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from veen.cli.clictx import FILE, Session
from veen.cli.hubcommon import DATA_DIR, existing, holder_of
from veen.cli.names import CONTEXT
from veen.cli.output import Exit, Fail, Output

__all__ = ["HubClient", "hub_options"]

_TIMEOUT_SECONDS: Final = 30
_MAX_ANSWER: Final = 64 * 1024 * 1024
_FILES: Final = ("ca_file", "token_file")


@dataclass(frozen=True, slots=True)
class HubClient:
    """Where a hub is, and what opens it."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None
    timeout: float = _TIMEOUT_SECONDS

    def get(self, path: str) -> Any:
        return self._json(self.request("GET", path)[1])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._json(self.request("POST", path, json.dumps(body).encode())[1])

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as exc:
            raise Fail(
                Exit.NETWORK,
                f"{self.url}: the answer is not that of a hub",
                "it is not JSON",
                "check the URL; a proxy or a login page may be in front of the hub",
                "E.NET.ANSWER",
            ) from exc

    def request(
        self, method: str, path: str, body: bytes | None = None, *, accept: str = "application/json", good: int = 299
    ) -> tuple[int, bytes]:
        """Status and body; Fail for anything above `good`, and if there is no hub to answer."""
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {self._token()}"
        connection = self._connect()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as exc:
            raise Fail(
                Exit.NETWORK,
                f"{self.url}: no answer",
                str(exc) or type(exc).__name__,
                "check the URL, and that the hub runs: veen hub status --data-dir DIR",
                "E.NET.UNREACHABLE",
            ) from exc
        finally:
            connection.close()
        if answer.status > good:
            raise _refused(self.url, answer.status, data)
        return answer.status, data

    def _token(self) -> str:
        assert self.token_file is not None  # noqa: S101 - asked by the caller
        try:
            return self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise Fail(
                Exit.LOCAL, f"{self.token_file}: cannot be read", str(exc), "give a file with one token", "E.LOCAL"
            ) from exc

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise Fail(Exit.USAGE, f"{self.url}: not a hub", "expected http://… or https://…", "--hub URL", "E.USAGE")
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout)
        context = ssl.create_default_context(cafile=self.ca_file)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=self.timeout, context=context)


def _refused(url: str, status: int, data: bytes) -> Fail:
    request_id = None
    try:
        envelope = json.loads(data)
        code, message = str(envelope["code"]), str(envelope["message"])
        request_id = envelope.get("request_id")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = "E.UNAVAILABLE", f"HTTP status {status}"
    hint = "give --token-file FILE" if status in (401, 403) else "veen hub health"
    return Fail(
        Exit.REFUSED,
        f"{url}: the hub refused ({code})",
        message,
        hint,
        code,
        request_id=request_id if isinstance(request_id, str) else None,
    )


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a `HubClient` as `client`: by URL, by context, or by the data directory of a hub here."""

    @wraps(command)
    def run(output: Output, *args: Any, **options: Any) -> Any:
        names = ("hub", "data_dir", "ca_file", "token_file", "context")
        client = _client(output, **{name: options.pop(name) for name in names})
        return command(output, *args, client=client, **options)

    decorated: Callable[..., Any] = run
    for option in (
        click.option("--context", type=CONTEXT, help="The context that names the hub. [VEEN_CONTEXT]"),
        click.option("--token-file", type=FILE, help="A file with the hub's bearer token. [VEEN_TOKEN_FILE]"),
        click.option(
            "--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM). [VEEN_CA_FILE]"
        ),
        click.option("--data-dir", type=DATA_DIR, help="The data directory of a hub that runs on this machine."),
        click.option("--hub", help="The URL of the hub. [VEEN_HUB]"),
    ):
        decorated = option(decorated)
    return decorated


def _client(output: Output, *, data_dir: Path | None, **flags: str | None) -> HubClient:
    session = Session(output, flags)
    if data_dir is not None:  # this very hub, whatever is configured
        if flags["hub"] is not None:
            raise click.UsageError("give one of --hub and --data-dir")
        ca_file, token_file = (Path(path) if (path := flags[key]) else None for key in _FILES)
        return HubClient(_url_of(data_dir), ca_file, token_file)
    if session.settings.hub.value is None:
        raise click.UsageError("give --hub URL or --data-dir DIR, or name a hub: veen context add NAME --hub URL")
    ca_file, token_file = (session.settings.path(key) for key in _FILES)
    return HubClient(session.hub_url, ca_file, token_file)


def _url_of(data_dir: Path) -> str:
    holder = holder_of(existing(data_dir))
    if holder is None or holder.url is None:
        what = "no hub runs it" if holder is None else f"its hub (pid {holder.pid}) does not listen yet"
        raise Fail(
            Exit.NETWORK,
            f"{data_dir}: no answer",
            what,
            f"veen hub start --data-dir {data_dir}",
            "E.NET.UNREACHABLE",
        )
    return holder.url
