"""Asking a running hub over HTTP: its JSON form, one request per connection, nothing but the standard library."""

import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from veen.cli.hubcommon import DATA_DIR, existing, holder_of
from veen.cli.output import Exit, Fail

__all__ = ["HubClient", "hub_options"]

_TIMEOUT_SECONDS: Final = 30
_MAX_ANSWER: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HubClient:
    """Where a hub is, and what opens it."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path)[1])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return json.loads(self.request("POST", path, json.dumps(body).encode())[1])

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
                "E.NETWORK",
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
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
        context = ssl.create_default_context(cafile=self.ca_file)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS, context=context)


def _refused(url: str, status: int, data: bytes) -> Fail:
    try:
        envelope = json.loads(data)
        code, message = str(envelope["code"]), str(envelope["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "E.UNAVAILABLE", f"HTTP status {status}"
    hint = "give --token-file FILE" if status in (401, 403) else "veen hub health"
    return Fail(Exit.REFUSED, f"{url}: the hub refused ({code})", message, hint, code)


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a `HubClient` as `client`, by URL or by the data directory of a hub on this machine."""

    def run(*args: Any, hub: str | None, data_dir: Path | None, **options: Any) -> Any:
        ca_file, token_file = options.pop("ca_file"), options.pop("token_file")
        client = HubClient(hub or _url_of(data_dir), ca_file, token_file)
        return command(*args, client=client, **options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click keeps them there
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in (
        click.option("--token-file", type=file, help="A file with the bearer token that the hub asks for."),
        click.option("--ca-file", type=file, help="Certificates to trust instead of the system's (PEM)."),
        click.option("--data-dir", type=DATA_DIR, help="The data directory of a hub that runs on this machine."),
        click.option("--hub", envvar="VEEN_HUB", help="The URL of the hub."),
    ):
        run = option(run)
    return run


def _url_of(data_dir: Path | None) -> str:
    if data_dir is None:
        raise click.UsageError("give --hub URL or --data-dir DIR")
    holder = holder_of(existing(data_dir))
    if holder is None or holder.url is None:
        what = "no hub runs it" if holder is None else f"its hub (pid {holder.pid}) does not listen yet"
        raise Fail(Exit.NETWORK, f"{data_dir}: no answer", what, f"veen hub start --data-dir {data_dir}", "E.NETWORK")
    return holder.url
