"""Blocking calls to a hub for planners and tasks, with errors that say what to do.

Spark shows only the text of an error, so the text includes the hint. Requests without an answer are retried with
growing pauses (`veen.client.transport.calls`), so a hub may restart in the middle of a task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from veen.client.errors import BadAnswer, CertificateUnverified, ClientError, Divergence, HubRefused, NetworkError
from veen.client.session import HubSession
from veen.client.transport.calls import NOTHING, Calls, Retry
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin
from veen.core.objects.identity import IdentityError
from veen.core.objects.tooling import IdentityResponse
from veen.lake.log.errors import PipelineError
from veen.lake.log.options import HubAddress

T = TypeVar("T")


class HubFailed(PipelineError):
    """A failure between client and hub. Its text ends with the hint."""

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"


class HubUnreachable(HubFailed):
    """No answer within the option `patience`."""

    hint = "Check that the hub runs and can be reached from executors, too (veen hub status); `patience` waits longer."


class HubCertificate(HubFailed, code="E.NET.CERTIFICATE"):
    """A hub certificate that cannot be verified."""

    hint = "Name the authority that signed it: caFile (in Spark options) or --ca-file, a file on every executor, too."


class HubSaysNo(HubFailed):
    """A request that the hub refused."""

    hint = "Give a token or a certificate with tokenFile or clientCert; `veen explain CODE` explains a code."


class HubDiverged(HubFailed):
    """Another hub than the pinned one, or one that contradicts what it signed before."""

    hint = "Compare hubKey with what the operator published before going on."


class HubLink:
    """A connection to a hub, opened on first use: `with HubLink(address) as link:`. Not for use in an event loop."""

    def __init__(self, address: HubAddress) -> None:
        self.address = address
        self._runner = asyncio.Runner()
        self._calls: Calls | None = None
        self._session: HubSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if self._calls is not None:
            self._runner.run(self._calls.transport.aclose())
        self._runner.close()

    def run(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs only calls; the hub's identity is not checked."""
        return self._run(self._with_calls(work))

    def session(self, work: Callable[[HubSession], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs the pinned hub. Raise HubDiverged if another one answers."""
        return self._run(self._with_session(work))

    def bound(self) -> HubAddress:
        """Return the address with the hub_id that the pinned key signed, so that tasks reach no other hub (D-174)."""

        async def hub_id(session: HubSession) -> str:
            return session.hub_id.hex()

        return self.address if self.address.pin is None else replace(self.address, hub_id=self.session(hub_id))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except BadAnswer as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc
        except CertificateUnverified as exc:
            raise HubCertificate(f"{self.address.url}: {exc}") from exc
        except NetworkError as exc:
            raise HubUnreachable(f"{self.address.url}: {exc}") from exc
        except HubRefused as exc:
            raise HubSaysNo(f"{self.address.url}: {exc}") from exc
        except Divergence as exc:
            raise HubDiverged(f"{self.address.url}: {exc}") from exc
        except ClientError as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc

    async def _with_calls(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        return await work(self._open_calls())

    async def _with_session(self, work: Callable[[HubSession], Coroutine[Any, Any, T]]) -> T:
        if self._session is None:
            calls = self._open_calls()
            at = self.address
            pin = HubPin.parse(at.pin, at.hub_id) if at.pin else await _pin_claimed_identity(calls)
            session = HubSession(calls, pin)
            await session.open()
            self._session = session
        return await work(self._session)

    def _open_calls(self) -> Calls:
        if self._calls is None:
            at = self.address
            transport = open_transport(
                at.url,
                ca_file=_path(at.ca_file),
                client_cert=_path(at.client_cert),
                client_key=_path(at.client_key),
                token_file=_path(at.token_file),
                insecure_http=at.insecure_http,
                timeout=float(at.timeout),
            )
            self._calls = Calls(transport, Retry(seconds=float(at.patience)))
        return self._calls


async def _pin_claimed_identity(calls: Calls) -> HubPin:
    """Return a pin of the identity that the hub claims. Only for levels that check no signature."""
    answer = await calls.ask("tooling/identity", NOTHING, IdentityResponse)
    try:
        return HubPin.of_identity(answer.to_identity())
    except IdentityError as exc:
        raise BadAnswer(f"tooling/identity: {exc}") from exc


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
