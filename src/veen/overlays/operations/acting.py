"""Base of folds of operations, sent by their authors or by agents for a principal (D-179).

A fold that lists DELEGATED among its schemas gets embedded operations of its own schemas with the authority of the
principal, once `check_chain` has found nothing against them (001 spec-3 §4.3).
"""

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, Generic, NamedTuple, TypeVar

from veen.core.event import Event
from veen.overlays.framework.body import Body
from veen.overlays.framework.decode import Typed, Violation
from veen.overlays.framework.dedup import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.speaking import ANY_BINDING, STATEMENT_TYPES, Speaking, Voice, voice_of_key
from veen.overlays.operations.common import KEYS_ONLY, Speakers, operation_id_of
from veen.overlays.operations.delegation import NO_CAPS, Caps, DelegatedExecution, check_chain, inner_body

B = TypeVar("B", bound=Body)
K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class Act(NamedTuple, Generic[B]):
    """One operation and the identities for which its sender speaks."""

    event: Event
    body: B
    msg_id: bytes  # of the original, where the event is a copy (D-85)
    operation_id: bytes
    identities: Voice  # of the sender at this place; delegated: the principal alone
    is_delegated: bool

    def check_speaker(self, identity: bytes, code: str, field: str) -> None:
        """Raise Violation unless the sender may speak for `identity`, the value of `field`."""
        if identity not in self.identities:
            raise Violation(code, f"the sender does not speak for {field} {identity.hex()}")


class ActingFold(Speaking[K, R, V]):
    """Base of a fold of operations. The overlay writes `act` and `show`, and `own_settings` if it has settings."""

    version = 2  # client keys are bound to principals by statements of the stream (D-179)

    def __init__(
        self,
        *,
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speaks=speaks, realms=realms, mirrors=mirrors)
        self.speakers, self.caps = speakers, caps

    def own_settings(self) -> Any:
        return None

    def settings(self) -> Any:
        return [self.speakers.settings(), self.caps.settings(), self.own_settings(), *self.voice_settings()]

    @abstractmethod
    def act(self, state: Table[K, R], act: Act[Any]) -> None:
        """Apply one operation. Check first and write then, as in `Ordered.step`."""

    def step(self, state: Table[K, R], event: Typed[Any]) -> None:
        e, body = event
        if type(body) in STATEMENT_TYPES:
            self.take_statement(state, event)
            return
        is_delegated = type(body) is DelegatedExecution
        if is_delegated and body.operation_schema not in self.schemas:
            return  # an operation of another profile
        others = self.speakers.others(e.client_id, e.ts)
        # Most streams have no binding, and most folds are of them.
        voice = voice_of_key(e.client_id, others) if state.get(ANY_BINDING) is None else self.voice(state, e, others)  # type: ignore[arg-type]  # a key of `Speaking`
        if is_delegated:
            check_chain(body, e, self.caps, voice)
            voice = Voice(body.principal_identity)
            body = inner_body(body, e, self.schemas)
        msg_id = self.mirrors.identity(e)
        self.act(state, Act(e, body, msg_id, operation_id_of(msg_id), voice, is_delegated))
