"""External logins: from a provider's token to an account of a realm (001 ID §10.2).

The gateway is an identity like any other: it writes links, and readers believe the links of the gateways they trust.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from veen.core import cbor
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.crypto.hkdf import hkdf
from veen.core.errors import MalformedError, VerifyError
from veen.overlays.framework.state import Free
from veen.overlays.id import drafts
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.ids import ctx_id_of
from veen.overlays.id.oidc import KeySet, OidcIdentity, OidcMissing, Provider, TokenRefused, check_token
from veen.overlays.id.state import IdState

__all__ = [
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
