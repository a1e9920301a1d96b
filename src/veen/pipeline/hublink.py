"""A hub on the other end of a URL, for planners and tasks: calls that block, and errors that say what to do.

Spark shows nothing of an error but its text, so the text has the hint in it. What the hub does not answer in time is
asked again with growing pauses (`veen.client.calls`), so a restart in the middle of a task goes unnoticed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from veen.client.calls import NOTHING, Calls, Retry
from veen.client.errors import BadAnswer, ClientError, Divergence, HubRefused, NetworkError
from veen.client.http import HttpTransport
from veen.client.pin import HubPin
from veen.client.session import Session
from veen.core.tooling import IdentityResponse
from veen.pipeline.errors import PipelineError
from veen.pipeline.options import HubAddress

__all__ = ["HubDiverged", "HubFailed", "HubLink", "HubSaysNo", "HubUnreachable"]

T = TypeVar("T")


class HubFailed(PipelineError):
    """Something between us and a hub; its text ends with what can be done."""

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"


class HubUnreachable(HubFailed):
    """No answer, in all the time that the option `patience` allows."""

    hint = "Check that the hub runs and can be reached from executors, too (veen hub status); `patience` waits longer."


class HubSaysNo(HubFailed):
    """The hub answered, and refused."""

    hint = "Give a token or a certificate with tokenFile or clientCert; `veen explain CODE` tells what a code means."


class HubDiverged(HubFailed):
    """Another hub answers, or this one was caught lying about itself."""

    hint = "Compare hubKey with what the operator published before going on."


class HubLink:
    """`with HubLink(address) as link:` is connected when it is first used. Not for use inside an event loop."""

    def __init__(self, address: HubAddress) -> None:
        self.address = address
        self._runner = asyncio.Runner()
        self._calls: Calls | None = None
        self._session: Session | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if self._calls is not None:
            self._runner.run(self._calls.transport.aclose())
        self._runner.close()

    def run(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        """What needs no more than calls; the hub need not have told who it is."""
        return self._told(self._with_calls(work))

    def session(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """What needs the pinned hub: HubDiverged if another one answers."""
        return self._told(self._with_session(work))

    def _told(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except BadAnswer as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc
        except NetworkError as exc:
            raise HubUnreachable(f"{self.address.url}: {exc}") from exc
        except HubRefused as exc:
            raise HubSaysNo(f"{self.address.url}: {exc}") from exc
        except Divergence as exc:
            raise HubDiverged(f"{self.address.url}: {exc}") from exc
        except ClientError as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc

    async def _with_calls(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        return await work(self._open())

    async def _with_session(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        if self._session is None:
            calls = self._open()
            pin = HubPin.parse(self.address.pin) if self.address.pin else await _claimed(calls)
            session = Session(calls, pin)
            await session.open()
            self._session = session
        return await work(self._session)

    def _open(self) -> Calls:
        if self._calls is None:
            at = self.address
            transport = HttpTransport(
                at.url,
                ca_file=_path(at.ca_file),
                client_cert=_path(at.client_cert),
                client_key=_path(at.client_key),
                token_file=_path(at.token_file),
                timeout=float(at.timeout),
            )
            self._calls = Calls(transport, Retry(seconds=float(at.patience)))
        return self._calls


async def _claimed(calls: Calls) -> HubPin:
    """What the hub says of itself, where nothing is pinned: only for levels that check no signature."""
    told = await calls.ask("tooling/identity", NOTHING, IdentityResponse)
    first = min(told.hub_keys, key=lambda key: (key.valid_from, key.hub_pk))
    return HubPin.of_key(first.hub_pk)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
