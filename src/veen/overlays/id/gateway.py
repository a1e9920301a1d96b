"""External logins: from a provider's token to an account of a realm (001 ID §10.2).

The gateway is an identity like any other: it writes links, and readers believe the links of the gateways they trust.

ID tokens of external providers, checked against a local key set (RFC 7515, 7517, 7519, 8725; OIDC Core §3.1.3.7).

PyJWT checks the signature; everything around it is decided here, because here time is an argument and keys come from
the deployment only: a token cannot bring, name or fetch a key, nor choose an algorithm that is not its key's own.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import isfinite
from typing import Any, Final, Self, TypeGuard

from veen.core import cbor
from veen.core.catalogue import install_hint
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.crypto.hkdf import hkdf
from veen.core.errors import MalformedError, VeenError, VerifyError
from veen.overlays.framework.state import Free
from veen.overlays.id import drafts
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.ids import ctx_id_of
from veen.overlays.id.state import IdState

__all__ = [
    "ALGORITHMS",
    "MAX_TOKEN_BYTES",
    "KeySet",
    "Login",
    "LoginRefused",
    "OidcIdentity",
    "OidcMissing",
    "Provider",
    "TokenRefused",
    "check_token",
    "custodial_principal",
    "login",
]


MAX_TOKEN_BYTES: Final = 16_384
_MIN_RSA_BITS: Final = 2_048
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)

# The one algorithm of each kind of key. HS* is not among them: its key would have to be a secret, and a public key
# that is taken for one is the oldest forgery of all (RFC 8725 §2.1).
ALGORITHMS: Final[Mapping[tuple[Any, Any], str]] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}


class OidcMissing(VeenError):
    """Library for external logins that is not installed."""

    hint = install_hint("oidc")

    def __str__(self) -> str:
        return "external logins need PyJWT with cryptography, which is not installed"


class TokenRefused(VerifyError):
    """An external token that does not prove its claims. `code` is stable; the token itself is never shown."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.args = (code, what)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


@dataclass(frozen=True, slots=True)
class _Key:
    algorithm: str
    public: Any = field(repr=False)  # of the library


@dataclass(frozen=True, slots=True)
class KeySet:
    """A provider's public keys by kid, from a JWKS document that the deployment keeps."""

    keys: Mapping[str, _Key]

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a key set. Raise MalformedError if the document is none, or contains what must not be in one.

        Keys for other uses and of kinds that are not supported are left out, as RFC 7517 §5 wants it.
        """
        document = _json(text, "JWKS")
        if type(document) is not dict or type(document.get("keys")) is not list:
            raise MalformedError("expected an object with a list of keys", "JWKS")
        keys: dict[str, _Key] = {}
        for kid, key in _read_keys(document["keys"]):
            if kid in keys:
                raise MalformedError(f"two keys have the kid {kid!r}", "JWKS")
            keys[kid] = key
        if not keys:
            raise MalformedError("no key that can verify a token", "JWKS")
        return cls(keys)


def _read_keys(items: list[Any]) -> Iterator[tuple[str, _Key]]:
    jwt = _library()
    for item in items:
        if type(item) is not dict:
            raise MalformedError("a key is an object", "JWKS")
        if "d" in item or "k" in item:
            raise MalformedError("a secret key in a public key set: replace it at the provider", "JWKS")
        kind = (item.get("kty"), item.get("crv"))
        algorithm = next((name for algorithm_kind, name in ALGORITHMS.items() if algorithm_kind == kind), None)
        if algorithm is None or item.get("alg", algorithm) != algorithm or item.get("use", "sig") != "sig":
            continue
        ops = item.get("key_ops", ["verify"])
        if type(ops) is not list or "verify" not in ops:
            continue
        if type(item.get("kid")) is not str:
            raise MalformedError("a key without a kid", "JWKS")
        try:
            public = jwt.PyJWK(item, algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError) as exc:
            raise MalformedError(f"key {item['kid']!r} cannot be read", "JWKS") from exc
        if algorithm == "RS256" and public.key_size < _MIN_RSA_BITS:
            raise MalformedError(f"key {item['kid']!r} is shorter than {_MIN_RSA_BITS} bits", "JWKS")
        yield item["kid"], _Key(algorithm, public)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """An identity provider that a deployment trusts (§10.2), and the claims of it that may enter the log."""

    name: str  # as links call it: "google", "corp"
    issuer: str  # iss, exactly
    audience: str  # this deployment, as the provider knows it
    keys: KeySet
    leeway_sec: int = 60  # between the provider's clock and ours
    mirror: tuple[str, ...] = ()  # claims that are copied into the link; none by default
    display_name: str | None = None  # the claim that names a new account, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcIdentity:
    """The account that the provider authenticated."""

    provider: str
    external_sub: str
    claims: Mapping[str, Any] = field(repr=False)


def check_token(token: str, provider: Provider, *, now: int, nonce: str | None = None) -> OidcIdentity:
    """Return the identity that `token` proves at `now`; else raise TokenRefused. Codes, the first that applies:

    ID.JWT_FORMAT      not a compact JWS with a JSON object in it
    ID.JWT_HEADER      a type or an extension that is not understood
    ID.JWT_KEY         no key, or one that is not in the key set
    ID.JWT_ALG         an algorithm that is not that of the key
    ID.JWT_SIGNATURE   the signature does not verify
    ID.JWT_ISSUER      from another issuer
    ID.JWT_AUDIENCE    for another audience, or for several without being issued to this one
    ID.JWT_EXPIRED     exp is missing or over
    ID.JWT_EARLY       nbf or iat lies ahead
    ID.JWT_SUBJECT     sub is missing or malformed
    ID.JWT_NONCE       not the answer to this login
    """
    jwt = _library()
    key = _key_for(token, provider.keys, jwt)
    try:
        signed = jwt.PyJWS(algorithms=[key.algorithm]).decode_complete(token, key.public, [key.algorithm])
    except jwt.InvalidSignatureError as exc:
        raise TokenRefused("ID.JWT_SIGNATURE", "the signature does not verify") from exc
    except (jwt.PyJWTError, ValueError) as exc:
        raise TokenRefused("ID.JWT_FORMAT", "not a JWS") from exc
    claims = _object(signed["payload"], "claims")
    _check_parties(claims, provider)
    _check_times(claims, now, provider.leeway_sec)
    sub = claims.get("sub")
    if type(sub) is not str or not 1 <= len(sub) <= 255 or not sub.isascii():  # OIDC Core §2
        raise TokenRefused("ID.JWT_SUBJECT", "sub is missing, or is not 1 to 255 ASCII characters")
    if nonce is not None and claims.get("nonce") != nonce:
        raise TokenRefused("ID.JWT_NONCE", "the nonce is not that of this login")
    return OidcIdentity(provider=provider.name, external_sub=sub, claims=claims)


def _key_for(token: str, keys: KeySet, jwt: Any) -> _Key:
    if len(token) > MAX_TOKEN_BYTES or _COMPACT.fullmatch(token) is None:
        raise TokenRefused("ID.JWT_FORMAT", "not a compact JWS")
    head = token.partition(".")[0]
    try:
        raw = jwt.utils.base64url_decode(head)
    except ValueError as exc:
        raise TokenRefused("ID.JWT_FORMAT", "the header is not base64url") from exc
    header = _object(raw, "header")
    if "crit" in header or "b64" in header:  # we understand no extension (RFC 7515 §4.1.11)
        raise TokenRefused("ID.JWT_HEADER", "the header asks for an extension")
    typ = header.get("typ", "JWT")
    if type(typ) is not str or typ.lower() not in ("jwt", "application/jwt"):  # another type says other things
        raise TokenRefused("ID.JWT_HEADER", "the type is not JWT")
    kid = header.get("kid")
    key = keys.keys.get(kid) if type(kid) is str else None
    if key is None:
        raise TokenRefused("ID.JWT_KEY", "the key set has no such key")
    if header.get("alg") != key.algorithm:
        raise TokenRefused("ID.JWT_ALG", f"the algorithm of this key is {key.algorithm}")
    return key


def _check_parties(claims: Mapping[str, Any], provider: Provider) -> None:
    if claims.get("iss") != provider.issuer:
        raise TokenRefused("ID.JWT_ISSUER", f"not issued by {provider.issuer}")
    audience = claims.get("aud")
    audiences = [audience] if type(audience) is str else audience
    if type(audiences) is not list or provider.audience not in audiences:
        raise TokenRefused("ID.JWT_AUDIENCE", f"not meant for {provider.audience}")
    # A token for several parties counts only for the one it was issued to (OIDC Core §3.1.3.7).
    if (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != provider.audience:
        raise TokenRefused("ID.JWT_AUDIENCE", "issued to another party")


def _check_times(claims: Mapping[str, Any], now: int, leeway: int) -> None:
    exp = claims.get("exp")
    if not _is_time(exp) or now >= exp + leeway:
        raise TokenRefused("ID.JWT_EXPIRED", "exp is missing or in the past")
    for name in ("nbf", "iat"):
        if name in claims and (not _is_time(claims[name]) or now < claims[name] - leeway):
            raise TokenRefused("ID.JWT_EARLY", f"{name} lies ahead")


def _is_time(value: Any) -> TypeGuard[float]:
    """Return True for a NumericDate (RFC 7519 §2). A number too large for a float reads as infinity, which is none."""
    return type(value) is int or (type(value) is float and isfinite(value))


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = _json(raw, what)
    except MalformedError as exc:
        raise TokenRefused("ID.JWT_FORMAT", f"{what}: {exc.what}") from exc
    if type(value) is not dict:
        raise TokenRefused("ID.JWT_FORMAT", f"{what}: not a JSON object")
    return value


def _json(text: str | bytes, where: str) -> Any:
    """Parse JSON. Refuse repeated keys, which readers interpret differently."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not JSON", where) from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated key")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _library() -> Any:
    """Import PyJWT when the first token is checked: it is an extra that nothing else needs."""
    try:
        jwt = import_module("jwt")
        import_module("cryptography")
    except ImportError as exc:
        raise OidcMissing from exc
    return jwt


class LoginRefused(VerifyError):
    """A valid token without an account that may be used. `code` is stable."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.args = (code, what)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The account, and the link that the gateway has to send before others can see it."""

    ctx_id: bytes
    created: bool
    messages: tuple[Addressed, ...]


def login(
    state: IdState,
    token: str,
    provider: Provider,
    *,
    realm_id: bytes,
    writers: Collection[bytes],
    now: int,
    principal_pk: bytes | None = None,
    nonce: str | None = None,
    trusted_orgs: Collection[bytes] = (),
) -> Login:
    """Validate the token, find or derive the account in the realm, and return it with the link to send.

    Only links that `writers` wrote count (the client_ids of gateways): anyone may write into a stream of their own that
    somebody else's external account is theirs. A new account belongs to `principal_pk`, which `custodial_principal`
    derives or the user brings: then the caller must have seen that the user holds it, for instance by `authenticate`,
    or the account of somebody else would be linked. Codes, besides those of `check_token`:

    ID.LOGIN_UNKNOWN   no account is linked, and without a principal none can be made
    ID.LOGIN_TARGET    linked to an organization, which cannot log in
    ID.LOGIN_REVOKED   the account is disabled; a new one would undo that
    """
    identity = check_token(token, provider, now=now, nonce=nonce)
    link = state.link(realm_id, identity.provider, identity.external_sub, as_of=now, writers=writers)
    if link is not None and link.ctx_id is None:
        raise LoginRefused("ID.LOGIN_TARGET", "the external account stands for an organization")
    if link is not None and link.ctx_id is not None:
        ctx_id = link.ctx_id
    elif principal_pk is not None:
        ctx_id = ctx_id_of(principal_pk, realm_id)
    else:
        raise LoginRefused("ID.LOGIN_UNKNOWN", "no account is linked to this external account")
    if state.ctx_revocation(ctx_id, realm_id, now, trusted_orgs=trusted_orgs) is not None:
        raise LoginRefused("ID.LOGIN_REVOKED", "the account is disabled in this realm")
    attributes = _select_claims(identity.claims, provider)
    messages: list[Addressed] = []
    created = link is None and (ctx_id, realm_id) not in state.contexts
    if created:
        name = identity.claims.get(provider.display_name) if provider.display_name is not None else None
        display_name = name if type(name) is str and _is_plain(name) else None
        messages.append(drafts.ctx_profile(ctx_id, realm_id, display_name=display_name, updated_at=now))
    if link is None or _free(attributes) != link.attributes:
        messages.append(
            drafts.external_link(
                realm_id,
                ctx_id=ctx_id,
                provider=identity.provider,
                external_sub=identity.external_sub,
                attributes=attributes,
                ts=now if link is None else max(now, link.ts),  # an update must not lose against what it updates
            )
        )
    return Login(ctx_id=ctx_id, created=created, messages=tuple(messages))


def custodial_principal(secret: bytes, *, realm_id: bytes, provider: str, external_sub: str) -> SigningKey:
    """Derive the key of a principal for a user without keys: the same at every login, different in every realm.

    `secret` is the gateway's, 32 bytes or more; whoever has it is every such user.
    """
    if len(secret) < SEED_BYTES:
        raise ValueError(f"a custodial secret has at least {SEED_BYTES} bytes")
    info = cbor.encode([realm_id, provider, external_sub])
    return SigningKey(hkdf(secret, b"veen/id/custodial-principal", info, SEED_BYTES))


def _select_claims(claims: Mapping[str, Any], provider: Provider) -> dict[str, Any] | None:
    """Return the claims that the deployment lets into the log and that CBOR can encode; None if there are none."""
    chosen = {name: claims[name] for name in provider.mirror if name in claims and _is_plain(claims[name])}
    return chosen or None


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(_is_plain(element) for element in value)
    try:
        cbor.check(value, "claim")
    except MalformedError:
        return False
    return type(value) in (str, int, bool)


def _free(value: dict[str, Any] | None) -> Free | None:
    return None if value is None else Free(value)
