"""Verification of signatures that the signing processor of the OpenTelemetry collector puts on log records.

The processor signs a canonical JSON object (RFC 8785) of a record: event name, body, both times, trace and span id, and
the attributes without `audit.integrity.*`, each scalar under the name of its type. It writes the signature to the
attribute `audit.integrity.value`, algorithm and certificate to the resource. The payload of a recorder event has no
types (an integral double looks like an integer), so the OTLP source stores body and attributes of a signed record a
second time with their types, as `_typed`. Only certificates and keys that the caller names are trusted: a certificate
in the log proves nothing.
"""

import base64
import binascii
import hashlib
import hmac
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Self

from veen.client.errors import LocalError
from veen.core.canonical import Json
from veen.products.recorder.events import words_of

PREFIX: Final = "audit.integrity."
SEQUENCE: Final = "audit.sequence.number"
_VALUE: Final = f"{PREFIX}value"
_MAX_DEPTH: Final = 60
_MAX_SENDER: Final = 200  # characters
_MAX_RUNS: Final = 4_096  # of numbers behind gaps, for one sender
_SCALARS: Final = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")


# --- the signed form --------------------------------------------------------------------------------------------------


def to_typed(value: Any, depth: int = 0) -> Json:
    """Return an AnyValue of OTLP/JSON in the form that the processor signs, with type names.

    Raise ValueError if too deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    (kind, inner), *_ = value.items()
    if kind == "arrayValue":
        return [to_typed(element, depth + 1) for element in inner.get("values", [])]
    if kind == "kvlistValue":
        return {str(pair.get("key", "")): to_typed(pair.get("value"), depth + 1) for pair in inner.get("values", [])}
    if kind == "intValue":
        return {kind: str(int(inner))}
    return {kind: inner} if kind in _SCALARS else None


def canonical_json(value: Any) -> str:
    """Encode a value by RFC 8785. All numbers are doubles, as in JavaScript."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return (
            "{"
            + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{canonical_json(value[name])}" for name in names)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return _number(float(value))


def _number(value: float) -> str:
    """Format a number as ECMAScript does: shortest digits, with an exponent from 1e21 on and below 1e-6."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("not a finite number")
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if 0 < point <= 21:
        shown = text.ljust(point, "0") if point >= len(text) else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        shown = f"0.{'0' * -point}{text}"
    else:
        mantissa = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
        shown = f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"-{shown}" if sign else shown


def is_signed(payload: Json) -> bool:
    attributes = payload.get("attributes") if isinstance(payload, dict) else None
    return isinstance(attributes, dict) and isinstance(attributes.get(_VALUE), str)


def _plain(value: Json) -> Json:
    """Return the payload value of a typed value."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        if len(value) == 1 and (kind := next(iter(value))) in _SCALARS:
            inner = value[kind]
            return int(inner) if kind == "intValue" else {"base64": inner} if kind == "bytesValue" else inner
        return {name: _plain(element) for name, element in value.items()}
    return value


def _candidates(payload: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the byte strings that the processor may have signed. Releases differ on bodies that are not text."""
    with_types = payload["_typed"]
    data: dict[str, Any] = {}
    for name, member in (
        ("event_name", "eventName"),
        ("timestamp", "timeUnixNano"),
        ("observed_timestamp", "observedTimeUnixNano"),
        ("trace_id", "traceId"),
        ("span_id", "spanId"),
    ):
        text = str(payload.get(member) or "")
        if text.strip("0"):
            data[name] = text.lower() if name.endswith("_id") else text
    attributes = {name: value for name, value in with_types["attributes"].items() if not name.startswith(PREFIX)}
    if attributes:
        data["attributes"] = attributes
    body = with_types["body"]
    is_text = isinstance(body, dict) and list(body) == ["stringValue"]
    bodies = [{"body": body["stringValue"]}, {"body": body}] if is_text else [{"body": body}, {}]
    for part in bodies if body is not None else [{}]:
        yield canonical_json(data | part).encode()


# --- keys and verdicts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntegrityKeys:
    """Keys for these signatures: public keys by the SHA-256 of their certificate's DER, and a shared key."""

    certificates: Mapping[str, Any] = field(default_factory=dict)
    shared_key: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, certificates: Iterable[bytes], shared_key: bytes | None = None) -> Self:
        """Read PEM files, and a file with a shared key in base64. Raise LocalError if one of them is invalid."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        by_hash = {}
        try:
            for data in certificates:
                for certificate in x509.load_pem_x509_certificates(data):
                    der = certificate.public_bytes(Encoding.DER)
                    by_hash[hashlib.sha256(der).hexdigest()] = certificate.public_key()
            secret = None if shared_key is None else base64.b64decode(shared_key.strip(), validate=True)
        except (ValueError, binascii.Error) as exc:
            raise LocalError("expected certificates in PEM, and a shared key in base64") from exc
        return cls(by_hash, secret or None)

    def verifies(self, algorithm: object, reference: object, data: bytes, signature: bytes) -> bool | None:
        """Verify one signature; return None if there is no key for it."""
        if algorithm == "HMAC-SHA256":
            if self.shared_key is None:
                return None
            return hmac.compare_digest(hmac.digest(self.shared_key, data, "sha256"), signature)
        key = self.certificates.get(_fingerprint(reference))
        return None if key is None else _verifies(key, algorithm, data, signature)


def _fingerprint(reference: object) -> str:
    text = reference if isinstance(reference, str) else ""
    if text.startswith("sha256:"):
        return text.removeprefix("sha256:").lower()
    try:
        return hashlib.sha256(base64.b64decode(text, validate=True)).hexdigest()
    except (ValueError, binascii.Error):
        return ""


def _verifies(key: Any, algorithm: object, data: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    try:
        if algorithm in ("RS256", "RS512") and isinstance(key, rsa.RSAPublicKey):
            chosen = hashes.SHA256() if algorithm == "RS256" else hashes.SHA512()
            key.verify(signature, data, padding.PKCS1v15(), chosen)
        elif algorithm == "ES256" and isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        elif algorithm == "EdDSA" and isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        else:
            return False
    except InvalidSignature:
        return False
    return True


def check_integrity(payload: Mapping[str, Any], keys: IntegrityKeys) -> str | None:
    """Verify the signature of a signed record; return None if it is valid, else the reason."""
    if "_unverifiable" in payload and "_typed" not in payload:
        return "a rule took out values that the signature covers: it can no longer be checked"
    try:
        attributes, with_types, resource = payload["attributes"], payload["_typed"], payload["resource"]
        signature = base64.b64decode(attributes[_VALUE], validate=True)
        if _plain(with_types["attributes"]) != attributes or _plain(with_types["body"]) != payload.get("body"):
            return "the values with types are not those of the record"
        algorithm, reference = resource.get(f"{PREFIX}algorithm"), resource.get(f"{PREFIX}certificate")
        verdicts = [keys.verifies(algorithm, reference, data, signature) for data in _candidates(payload)]
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return "the record does not have what its signature covers"
    if any(verdicts):
        return None
    return "no key is named for its certificate" if None in verdicts else "the signature does not match the record"


# --- sequence numbers -------------------------------------------------------------------------------------------------


class SequenceNumbers:
    """Numbers of one sender (`audit.sequence.number`), in the order in which they were recorded.

    Numbers behind a gap are stored as runs, so memory depends on the gaps only. Above `_MAX_RUNS` runs the first gap is
    given up: its numbers stay missing even if they arrive later.
    """

    def __init__(self, first: int) -> None:
        self.upto = first  # every number from the first one to here is there, or was given up
        self._starts: list[int] = []  # of the runs behind `upto`, ascending; no two touch
        self._ends: list[int] = []
        self._given_up = 0
        self._first_given_up: int | None = None

    def add(self, number: int) -> None:
        at = bisect_right(self._starts, number)
        if number <= self.upto or (at and number <= self._ends[at - 1]):
            return
        joins_before = self._ends[at - 1] == number - 1 if at else self.upto == number - 1
        joins_after = at < len(self._starts) and self._starts[at] == number + 1
        end = self._ends[at] if joins_after else number
        if joins_after:
            del self._starts[at], self._ends[at]
        if joins_before and at:
            self._ends[at - 1] = end
        elif joins_before:
            self.upto = end
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, end)
        if len(self._starts) > _MAX_RUNS:
            self._give_up()

    def _give_up(self) -> None:
        if self._first_given_up is None:
            self._first_given_up = self.upto + 1
        self._given_up += self._starts[0] - self.upto - 1
        self.upto = self._ends[0]
        del self._starts[0], self._ends[0]

    @property
    def runs(self) -> int:
        """Number of stored runs."""
        return len(self._starts)

    @property
    def missing(self) -> int:
        gaps = (start - end - 1 for start, end in zip(self._starts, [self.upto, *self._ends], strict=False))
        return self._given_up + sum(gaps)

    @property
    def first_missing(self) -> int:
        return self.upto + 1 if self._first_given_up is None else self._first_given_up


def sequence_of(payload: Json, about: Mapping[str, Json] | None = None) -> tuple[str, int] | None:
    """Return the sender and the number of a numbered record.

    A sender is a service with its credential (D-184): `about`, or `_src` of the recorded event, names the credential.
    """
    if not isinstance(payload, dict):
        return None
    attributes, resource = payload.get("attributes"), payload.get("resource")
    number = attributes.get(SEQUENCE) if isinstance(attributes, dict) else None
    if type(number) is not int or not isinstance(resource, dict):
        return None
    names = [words_of(resource.get(name)) for name in ("service.name", "service.instance.id")]
    src = about if about is not None else payload.get("_src")
    credential = words_of(src.get("sender")) if isinstance(src, Mapping) else None
    sender = f"{names[0]}/{names[1]}"[:_MAX_SENDER]
    return (sender if credential is None else f"{sender} by {credential}"), number
