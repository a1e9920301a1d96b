"""The errors of the client, in four families that decide the exit code of the command line (UX: exit codes).

    LocalError      5   keys, configuration or state on this machine
    NetworkError    3   the hub was not reached, or what answered does not speak the protocol
    HubRefused      4   the hub answered with a refusal
    Divergence      1   the hub, or someone in its place, contradicts earlier proofs: evidence, never ignored

As in the core, errors carry data and survive pickling, the words are derived, and nothing here holds a secret.
`code` is stable and names the error in JSON output and for `veen explain`; message and hint are those of its row in
`veen/core/errors.toml`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Self

from veen.core.catalogue import install_hint
from veen.core.errors import RETIRED_CODES, MalformedError, VeenError, VerifyError
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.evidence import Equivocation

_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_MAX_MESSAGE: Final = 1_000  # characters of what a hub says to people


class ClientError(VeenError):
    """Base of all errors that the client library raises on purpose."""

    code: str = "E.CLIENT"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        message = self.row.message
        return message.format(error=self) if message else self.what


# --- this machine (exit 5) ----------------------------------------------------------------------------------


class LocalError(ClientError, code="E.LOCAL"):
    """Keys, configuration or state on this machine are missing or invalid."""


class SettingsError(LocalError):
    """A configuration that cannot be used, with its own code, its fault, cause and remedy."""

    def __init__(self, code: str, what: str, cause: str, hint: str) -> None:
        super(ClientError, self).__init__(code, what, cause, hint)
        self.code, self.what, self.cause = code, what, cause
        self.remedy = hint  # the words of the error itself, in place of the hint of its row

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}"


class _NamedError(LocalError):
    """An error about the identity or contact that `name` names."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _StreamError(LocalError):
    """An error about the keys of a stream."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class _ExpiredError(LocalError):
    """An error about something whose time has passed."""

    def __init__(self, expires_at: int, now: int) -> None:
        super(ClientError, self).__init__(expires_at, now)
        self.expires_at, self.now = expires_at, now

    @property
    def age(self) -> int:
        """Seconds since it expired."""
        return self.now - self.expires_at


class NameInvalid(_NamedError, code="E.LOCAL.NAME"):
    """A name that no identity can have."""


class IdentityMissing(_NamedError, code="E.LOCAL.IDENTITY"):
    """There is no identity of this name."""


class IdentityExists(_NamedError, code="E.LOCAL.EXISTS"):
    """An identity of this name exists and would be lost."""


class IdentityInUse(LocalError, code="E.LOCAL.IN_USE"):
    """Another process uses the identity: two would give one client_seq to two messages."""

    def __init__(self, name: str, pid: int | None = None) -> None:
        super(ClientError, self).__init__(name, pid)
        self.name, self.pid = name, pid

    @property
    def holder(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


class WrongPassphrase(LocalError, code="E.LOCAL.PASSPHRASE"):
    """The passphrase does not open the keystore, whose bytes are as they were written."""

    def __init__(self) -> None:
        super(ClientError, self).__init__()


class WrongRecoverySecret(WrongPassphrase, code="E.LOCAL.RECOVERY_SECRET"):
    """The recovery secret opens none of the keystore's recovery slots."""


class KeystoreDamaged(LocalError, code="E.LOCAL.KEYSTORE"):
    """The bytes of a keystore are not those that were written, or name parameters beyond the limits."""


class StateDamaged(LocalError, code="E.LOCAL.STATE"):
    """The stored state of a label was altered after it was written."""


class NotPinned(LocalError, code="E.LOCAL.PIN"):
    """No key of this hub is known, so no signature of the hub can be verified."""


class OpenPermissions(LocalError, code="E.LOCAL.PERMISSIONS"):
    """A file with a secret that other users of this machine may read or write."""

    def __init__(self, path: str, mode: int) -> None:
        super(ClientError, self).__init__(path, mode)
        self.path, self.mode = path, mode


class InsecureHttp(LocalError, code="E.LOCAL.PLAIN_HTTP"):
    """A secret would go over the network in the clear."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class UnknownStream(_StreamError, code="E.LOCAL.STREAM"):
    """The keyring knows nothing of this stream. `near` are names like it that it does know."""

    def __init__(self, stream: str, near: tuple[str, ...] = ()) -> None:
        super(ClientError, self).__init__(stream, near)
        self.what = self.stream = stream
        self.near = near

    @property
    def remedy(self) -> str | None:
        """For a name that was mistyped: the one that was meant."""
        return f"Did you mean {' or '.join(map(repr, self.near))}? {self.row.hint}" if self.near else None


class NoReaderKey(_StreamError, code="E.LOCAL.READER"):
    """The keyring can write to this stream, not read it (D-10)."""


class NotOwner(_StreamError, code="E.LOCAL.OWNER"):
    """Only the owner of a stream hands its read key over and announces generations (D-171)."""


class StreamKeysExist(_StreamError, code="E.LOCAL.KEYS_EXIST"):
    """The stream has keys already; new ones made beside them would lock its readers out."""


class NotReader(LocalError, code="E.LOCAL.MEMBER"):
    """Somebody is not among the readers of a stream, by the hand-overs in its log."""


class GenerationRefused(LocalError, code="E.LOCAL.GENERATION"):
    """A generation of keys that does not exist, is in use, or was announced by somebody else meanwhile."""


class ContactUnknown(_NamedError, code="E.LOCAL.CONTACT"):
    """There is no contact of this name."""


class ContactExists(LocalError, code="E.LOCAL.CONTACT_EXISTS"):
    """A name or a card is taken by another contact."""


class InviteError(LocalError, code="E.INVITE"):
    """An invitation cannot be used. Nothing of it was kept."""


class NotAnInvite(InviteError, code="E.INVITE.KIND"):
    """The file or word is something else."""


class InviteTruncated(InviteError, code="E.INVITE.TRUNCATED"):
    """The end of the invitation is missing."""


class InviteDamaged(InviteError, code="E.INVITE.DAMAGED"):
    """The invitation is not the one that was written."""


class InviteForAnother(InviteError, code="E.INVITE.RECIPIENT"):
    """The invitation is sealed for another card."""


class WrongCode(InviteError, code="E.INVITE.CODE"):
    """The one-time code is not that of this invitation."""

    def __init__(self) -> None:
        super().__init__("the code does not open this invitation")


class InviteExpired(_ExpiredError, InviteError, code="E.INVITE.EXPIRED"):
    """The invitation has expired."""


class InviteConflict(InviteError, code="E.INVITE.OWNER"):
    """The keyring has other keys of a stream, or follows another owner, than the invitation says."""


class KeyTextInvalid(LocalError, code="E.LOCAL.TEXT"):
    """A key or card given as text was altered, cut off, or is another kind of text."""


class CardInvalid(KeyTextInvalid, code="E.LOCAL.CARD"):
    """An identity card that its identity did not sign."""


class PrekeyExpired(_ExpiredError, code="E.LOCAL.PREKEY"):
    """A prekey past its time seals nothing any more; it still opens what was sealed to it before (KEX0.2)."""


class PrekeyMissing(_NamedError, code="E.LOCAL.NO_PREKEY"):
    """Nobody published a prekey that is live, so nothing can be sealed to one."""


class TokenMissing(LocalError, code="E.LOCAL.TOKEN"):
    """No capability token allows this."""


class TokenExpired(LocalError, code="E.LOCAL.TOKEN_EXPIRED"):
    """The capability token has outlived its ttl (D-48)."""

    def __init__(self, auth_ref: bytes, expires_at: int) -> None:
        super(ClientError, self).__init__(auth_ref, expires_at)
        self.auth_ref, self.expires_at = auth_ref, expires_at

    @property
    def token(self) -> str:
        """The beginning of the token's auth_ref, which is public."""
        return self.auth_ref.hex()[:16]


class RotationDue(LocalError, code="E.LOCAL.ROTATION"):
    """The client key reached one of its bounds and must be replaced before it signs again (KEX1+)."""


class PortableSetInvalid(LocalError, code="E.LOCAL.SET"):
    """A file of an exported set is not what was exported; `path` names it."""

    def __init__(self, path: str, what: str) -> None:
        super(ClientError, self).__init__(path, what)
        self.path, self.what = path, what


class ExtraMissing(LocalError, code="E.EXTRA"):
    """A feature needs a package that is not installed."""

    def __init__(self, extra: str, feature: str) -> None:
        super(ClientError, self).__init__(extra, feature)
        self.extra, self.feature = extra, feature
        self.remedy = install_hint(extra)


# --- the way to the hub (exit 3) ----------------------------------------------------------------------------


class NetworkError(ClientError, code="E.NET"):
    """Nothing is known about what the hub did: a retry resends the same bytes (D-56)."""


class Unreachable(NetworkError, code="E.NET.UNREACHABLE"):
    """No connection, or it broke."""


class CertificateUnverified(NetworkError, code="E.NET.CERTIFICATE"):
    """The hub's certificate could not be verified, so no request was sent."""


class BrokerRefused(NetworkError, code="E.NET.BROKER"):
    """The NATS server on the way to the hub does not let us in, or not to this subject."""


class TimedOut(NetworkError, code="E.NET.TIMEOUT"):
    """No answer in time."""


class BadAnswer(NetworkError, code="E.NET.ANSWER"):
    """Something answered, but not in the protocol."""


# --- refused by the hub (exit 4) -------------------------------------------------------------------------------


class HubRefused(ClientError):
    """The hub's answer, read for people; `detail` informs and decides nothing (CLNT-14)."""

    code = "E.VERSION"  # an error has the hub's own; a code that this release does not have comes from another version

    def __init__(
        self,
        code: str,
        message: str,
        *,
        stage: str | None = None,
        detail_enum: str | None = None,
        retry_after: int | None = None,
        request_id: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super(ClientError, self).__init__(code, message)
        self.code, self.message, self.stage, self.detail_enum = code, message, stage, detail_enum
        self.retry_after, self.request_id = retry_after, request_id
        self.detail: Mapping[str, Any] = dict(detail or {})

    @classmethod
    def from_envelope(cls, envelope: ErrorEnvelope) -> Self:
        """Decode an error, including the names of older documents (D-55). Raise MalformedError for an impossible
        code.

        All of it is text of a stranger: invalid names are left out, and a message is cut.
        """
        detail = envelope.detail or {}
        stage, detail_enum = _word(detail.get("stage")), _word(detail.get("detail_enum"))
        if _word(envelope.code) is None:
            raise MalformedError("expected the code of an error", f"{envelope.KIND}.code")
        retired = RETIRED_CODES.get(envelope.code)
        if retired is not None:
            stage, detail_enum = retired.stage.value, retired.detail_enum
        return cls(
            envelope.code if retired is None else retired.code,
            envelope.message if len(envelope.message) <= _MAX_MESSAGE else f"{envelope.message[:_MAX_MESSAGE]}…",
            stage=stage,
            detail_enum=detail_enum,
            retry_after=envelope.retry_after,
            request_id=_word(envelope.request_id),
            detail=detail,
        )

    def __str__(self) -> str:
        where = f" (stage {self.stage}, {self.detail_enum})" if self.stage and self.detail_enum else ""
        return f"the hub refused: {self.code}{where}: {self.message}"


def _word(value: Any) -> str | None:
    """Return the value if it is a name of the protocol, else None."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


# --- divergence (exit 1) ----------------------------------------------------------------------------------------


class Divergence(ClientError, VerifyError, code="E.DIVERGED"):
    """The hub contradicts its signatures, or facts that are known here. Each kind has its own class.

    `label` and `seq` are the place; `expected` and `found` are the two contradicting values, as public bytes or
    numbers.
    """

    def __init__(
        self,
        what: str,
        *,
        label: bytes = b"",
        seq: int | None = None,
        expected: bytes | int | None = None,
        found: bytes | int | None = None,
    ) -> None:
        super().__init__(what)
        self.label, self.seq, self.expected, self.found = label, seq, expected, found

    def __str__(self) -> str:
        where = [f"label {self.label.hex()[:16]}…"] if self.label else []
        where += [f"seq {self.seq}"] if self.seq is not None else []
        text = f"{self.what} ({', '.join(where)})" if where else self.what
        if self.expected is None and self.found is None:
            return text
        return f"{text}: expected {_shown(self.expected)}, found {_shown(self.found)}"


class Equivocated(Divergence, code="E.DIVERGED.EQUIVOCATION"):
    """The hub signed two different statements about one position; anyone can check `evidence` offline."""

    def __init__(self, what: str, evidence: Equivocation, *, label: bytes = b"", seq: int | None = None) -> None:
        super().__init__(what, label=label, seq=seq)
        self.evidence = evidence
        self.args = (what, evidence)


class ForeignKey(Divergence, code="E.DIVERGED.FOREIGN_KEY"):
    """Signed by a key that is not one of the pinned hub's."""


class HubIdChanged(Divergence, code="E.DIVERGED.HUB_ID"):
    """A hub answers under another hub_id than the pinned one: another log, whatever key it shows (D-174)."""


class OlderHub(Divergence, code="E.DIVERGED.OLDER_HUB"):
    """A hub of the pinned root answers that is older than another one which this client has met (D-121)."""


class RetiredKey(Divergence, code="E.DIVERGED.RETIRED_KEY"):
    """Signed by a key of the hub that was not valid at the time the statement carries (D-41)."""


class Rewound(Divergence, code="E.DIVERGED.REWOUND"):
    """The hub's log ends before what it already proved to us."""


class Reordered(Divergence, code="E.DIVERGED.REORDERED"):
    """Entries came in another order than the one the hub signed."""


class Dropped(Divergence, code="E.DIVERGED.DROPPED"):
    """An entry is missing that must be there."""


class StaleCheckpoint(Divergence, code="E.DIVERGED.STALE_CHECKPOINT"):
    """A checkpoint that ends before what the hub already proved to us."""


class RootMismatch(Divergence, code="E.DIVERGED.ROOT"):
    """The entries do not fold into the root that the hub signed."""


class ProofInvalid(Divergence, code="E.DIVERGED.PROOF"):
    """A proof does not lead to the root it is for."""


class ReceiptMismatch(Divergence, code="E.DIVERGED.RECEIPT"):
    """A receipt that is not for the message that was sent."""


def _shown(value: bytes | int | None) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 8 else f"{value.hex()[:16]}…"
    return "nothing" if value is None else str(value)
