"""The reaction of a client to its own revocation: drop revoked tokens and keys (001 spec-2 §4.4, KEX1-09).

The caller brings the revocations: a holder of the read key of a realm's revocation stream folds it
(`veen.overlays.federation.realm`) and hands over the records.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from veen.client.identity.keystore import Keystore
from veen.client.send.captokens import HeldToken, TokenStore
from veen.core.objects.policies import Revocation


@dataclass(frozen=True, slots=True)
class Discarded:
    """The dropped items: capabilities by auth_ref, client keys by client_id."""

    auth_refs: tuple[bytes, ...] = ()
    client_ids: tuple[bytes, ...] = ()


def discard_revoked(revocations: Iterable[Revocation], keystore: Keystore, tokens: TokenStore, now: int) -> Discarded:
    """Drop tokens and client keys that are revoked at `now`; replace a revoked key in use first.

    Keys are dropped from the oldest on, up to the last revoked one: those before it are retired and sign nothing.
    """
    active = {(item.kind, item.target) for item in revocations if item.ts <= now < item.until}
    keys = keystore.identity.client_keys
    revoked = [key for key in keys if ("client-id", key.client_id) in active]
    if revoked:
        last = revoked[-1].generation
        if last == keys[-1].generation:
            keystore.rotate(now)
        left = tuple(key for key in keystore.identity.client_keys if key.generation > last)
        identity = replace(keystore.identity, client_keys=left)
        keystore.save(replace(keystore.secrets, identity=identity))
    gone = [token.auth_ref for token in tokens.all() if _is_revoked(token, active)]
    for auth_ref in gone:
        tokens.remove(auth_ref)
    return Discarded(tuple(gone), tuple(key.client_id for key in revoked))


def _is_revoked(held: HeldToken, active: set[tuple[str, bytes]]) -> bool:
    """Return True if a token is revoked by its auth_ref, its bytes, a link of its chain (D-173), or its subject's
    key."""
    names = (
        ("auth-ref", held.auth_ref),
        ("client-id", held.token.subject_pk),
        *(("cap-token", target) for target in held.token.revocable_as()),
    )
    return not active.isdisjoint(names)
