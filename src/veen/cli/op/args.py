"""Arguments that the commands of `veen op` share: identities, the reader's policy, and known tokens."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.command import FILE, CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail
from veen.cli.shared.people import ME, principal_of

if TYPE_CHECKING:
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.nouns import Message, Noun
    from veen.overlays.operations.common import Speakers
    from veen.overlays.operations.delegation import Caps
    from veen.overlays.operations.recovery import Guards

F = TypeVar("F", bound=Callable[..., Any])

_MAX_POLICY: Final = 16 << 20


def account_of(session: CliSession, text: str) -> bytes:
    """Return the account of an identity, or the account_id itself from account:HEX."""
    from veen.cli.shared.files import hex32
    from veen.overlays.operations.common import account_id_of

    if text.startswith("account:"):
        return hex32(text.removeprefix("account:"))
    return account_id_of(principal_of(session, text))


def id_of(text: str) -> bytes:
    """64 hex digits, or a name and its hash."""
    from veen.core.hashing import H

    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    return data if len(data) == 32 else H(text.encode())


def stream_id_of(text: str) -> bytes:
    from veen.client.identity.keyring import StreamRef

    stream_id = StreamRef.parse(text).stream_id
    if stream_id is None:
        raise click.UsageError(f"{text} is a label, and a label does not tell its stream")
    return stream_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Rules by which operations count: readers who shall agree use the same policy and know the same tokens."""

    policy_file: str | None
    also: tuple[str, ...]  # streams that are folded together with the one that is named

    def streams(self, stream: str) -> list[str]:
        return list(dict.fromkeys((stream, *self.also)))

    def fold(self, session: CliSession, name: str, streams: Sequence[str]) -> "AnyFold":
        """Return the fold of a state class, with the policy and the tokens that chains in the log name."""
        policy = _Policy(_read_policy(self.policy_file))
        return policy.fold(session, name, streams)


class OpPlace:
    """The stream of a command of `veen op`, and the rules under which it is read."""

    def __init__(self, noun: "Noun", values: dict[str, Any]) -> None:
        self.stream: str = values.pop("stream")
        self._reading: Reading = values.pop("reading")
        self._principal: str | None = values.pop("principal", None)
        self._fold_name = noun.fold().name

    def fold(self, session: CliSession) -> "AnyFold":
        return self._reading.fold(session, self._fold_name, self.streams(session))

    def streams(self, session: CliSession) -> list[str]:
        return self._reading.streams(self.stream)

    def stream_of(self, message: "Message") -> str:
        return self.stream

    def value(self, session: CliSession, kind: str, text: Any) -> Any:
        """Return the value of a kind of `veen.overlays.operations.nouns`. Content is read before."""
        from veen.cli.op.write import digest_of

        match kind:
            case "account":
                return account_of(session, text or self._principal or ME)
            case "speaker":
                return principal_of(session, text or self._principal)
            case "id":
                return id_of(text)
            case "stream":
                return stream_id_of(text)
            case "terms":
                return digest_of(Path(text))[1]
            case _:
                return text


@dataclass(frozen=True, slots=True)
class _Policy:
    """The members of a policy file, each judged when it is used."""

    policy: Mapping[str, Any]

    def fold(self, session: CliSession, name: str, streams: Sequence[str]) -> "AnyFold":
        from veen.overlays.framework.registry import BUILTIN

        speaks = self._is_speaking()
        if name == "operation.mirror":
            return BUILTIN.folds[name](authors=self._identities(session, "mirror_authors"), speaks=speaks)
        if name == "operation.queryaudit":
            return BUILTIN.folds[name](services=self._identities(session, "services"), speaks=speaks)
        settings: dict[str, Any] = {"speakers": self._speakers(session), "speaks": speaks}
        if name == "operation.paid":
            settings |= {
                "issuing": [account_of(session, text) for text in self._texts("issuing")],
                "owners": self._owners(session),
                "currencies": self._texts("currencies") if "currencies" in self.policy else None,
                "default": self._text("default_currency"),
            }
        elif name == "operation.access":
            settings["granters"] = self._identities(session, "granters") or ()
        elif name == "operation.recovery":
            settings["guards"] = self._guards(session)
        caps = _caps(session, streams, self._identities(session, "issuers"))
        return BUILTIN.folds[name](caps=caps, **settings)

    def _texts(self, name: str) -> list[str]:
        value = self.policy.get(name, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise _bad_policy(f"{name} is a list of texts")
        return value

    def _text(self, name: str) -> str | None:
        value = self.policy.get(name)
        if value is not None and not isinstance(value, str):
            raise _bad_policy(f"{name} is a text")
        return value

    def _uint(self, name: str, value: Any) -> int:
        if type(value) is not int or value < 0:
            raise _bad_policy(f"{name} is a number, and not below 0")
        return value

    def _objects(self, name: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
        value = self.policy.get(name, kind())
        if not isinstance(value, kind):
            raise _bad_policy(f"{name} is a JSON {'list' if kind is list else 'object'}")
        return value

    def _identities(self, session: CliSession, name: str) -> list[bytes] | None:
        if name not in self.policy:
            return None
        return [_named(session, text) for text in self._texts(name)]

    def _owners(self, session: CliSession) -> dict[bytes, bytes]:
        owners = self._objects("owners", dict)
        return {account_of(session, account): _named(session, str(owner)) for account, owner in owners.items()}

    def _speakers(self, session: CliSession) -> "Speakers":
        from veen.overlays.operations.common import Speakers, Speaks

        records = []
        for speaker in self._objects("speakers", list):
            if not isinstance(speaker, dict) or not {"client", "identity"} <= speaker.keys() <= _SPEAKS:
                raise _bad_policy("speakers is a list of {client, identity, since?, until?}")
            until = speaker.get("until")
            records.append(
                Speaks(
                    _named(session, str(speaker["client"])),
                    _named(session, str(speaker["identity"])),
                    self._uint("since", speaker.get("since", 0)),
                    None if until is None else self._uint("until", until),
                )
            )
        return Speakers.by(records)

    def _is_speaking(self) -> bool:
        """Return False if client keys are not to speak for principals (D-179)."""
        value = self.policy.get("speaks", "on")
        if value not in ("on", "off"):
            raise _bad_policy('speaks is "on" or "off"')
        return bool(value == "on")

    def _guards(self, session: CliSession) -> "Guards":
        from veen.overlays.operations.recovery import Guards

        by_target = {}
        for target, rule in self._objects("guardians_of", dict).items():
            if not isinstance(rule, dict) or rule.keys() != {"guardians", "threshold"}:
                raise _bad_policy("guardians_of is an object of {guardians, threshold} by identity")
            guardians = _Policy(rule)._identities(session, "guardians") or []
            by_target[_named(session, target)] = (guardians, self._uint("threshold", rule["threshold"]))
        try:
            return Guards.of(
                self._identities(session, "guardians") or (),
                self._uint("threshold", self.policy.get("threshold", 1)),
                by_target=by_target,
                executors=self._identities(session, "executors"),
            )
        except ValueError as exc:
            raise _bad_policy(str(exc)) from exc


_SPEAKS: Final = frozenset(("client", "identity", "since", "until"))
_MEMBERS: Final = frozenset(
    [
        *("granters", "issuing", "owners", "currencies", "default_currency", "services", "speakers"),
        "speaks",
        *("issuers", "mirror_authors"),
        *("guardians", "threshold", "guardians_of", "executors"),
    ]
)


def _named(session: CliSession, text: str) -> bytes:
    """Return an identity that a policy names; what names nobody is a fault of the policy."""
    from veen.client.errors import ContactUnknown

    try:
        return principal_of(session, text)
    except ContactUnknown as exc:
        raise _bad_policy(f"{text!r} is neither 64 hex digits, a card nor a contact") from exc


def _bad_policy(cause: str) -> Fail:
    return Fail(
        "E.USAGE",
        "the policy of operations cannot be used",
        cause,
        "docs/overlays-operations.md shows every member of a policy",
    )


def _read_policy(path: str | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    data = Path(path).read_bytes()
    if len(data) > _MAX_POLICY:
        raise _bad_policy(f"{path} has more than {_MAX_POLICY} bytes")
    try:
        policy = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _bad_policy(f"{path} is not JSON: {exc}") from exc
    if not isinstance(policy, dict) or not policy.keys() <= _MEMBERS:
        unknown = sorted(policy.keys() - _MEMBERS) if isinstance(policy, dict) else []
        raise _bad_policy(f"{path}: unknown member {unknown[0]!r}" if unknown else f"{path} is no JSON object")
    return policy


def op_options(command: F) -> F:
    """Give a command its `reading`."""

    @click.option("--policy", type=FILE, help="Who may do what, as JSON; default: nobody has special rights.")
    @click.option(
        "--also", type=STREAM, multiple=True, help="Fold this stream too, such as that of grants. Repeatable."
    )
    @wraps(command)
    def run(*args: Any, policy: str | None, also: tuple[str, ...], **kwargs: Any) -> Any:
        return command(*args, reading=Reading(policy_file=policy, also=also), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def _caps(session: CliSession, streams: Sequence[str], issuers: list[bytes] | None) -> "Caps":
    """Return the tokens of chains in these streams that the hub knows, each with a signed record (D-139)."""
    from veen.cli.shared.folding import fold_streams
    from veen.client.errors import HubRefused, NoReaderKey
    from veen.overlays.operations.delegation import Caps, KnownCap, ReferencesFold

    try:
        references = fold_streams(session, ReferencesFold(), streams).state
    except NoReaderKey:
        return Caps(issuers=issuers)
    client, tokens = session.client(), []
    for reference in sorted(references):
        try:
            # cap_status tells the token; authorising it once more changes nothing and gives the signed record of it.
            grant = client.authorize(client.cap_status(reference).token)
        except HubRefused:
            session.output.note(f"the hub does not know token {reference.hex()}: operations that need it do not count")
            continue
        tokens.append(KnownCap(grant.token, grant.issued_at))
    return Caps(tokens, issuers=issuers)
