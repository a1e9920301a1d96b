"""Future client keys of a producer, known before they are used (decision 191).

A token names one client key (D-49), and a key must be replaced after a day (KEX1+). So that an agent can do this alone
at a hub that requires tokens, its next keys are derived from the identity: key number g has the seed

    HKDF(dh_sk, info = "veen/recorder-client-key" || u64be(g))

The holder of the identity can compute them; nobody else can link one to another. With `veen recorder init` the admin
issues tokens for one key for each day of the tokens' ttl. When they are used up, the agent keeps its last key and
reports that in every heartbeat (decision 121).
"""

from typing import Final

from veen.client.identity.identity import Identity
from veen.core.crypto import hkdf
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.hashing import u64be

MAX_SUCCESSORS: Final = 64  # tokens that one run of `init` issues in advance for a producer
_INFO: Final = b"veen/recorder-client-key"


def _seed(identity: Identity, generation: int) -> bytes:
    return hkdf.hkdf(identity.dh_sk, b"", _INFO + u64be(generation), SEED_BYTES)


def next_seed(identity: Identity) -> bytes:
    """Return the seed of the key that follows the current one."""
    return _seed(identity, identity.client_key.generation + 1)


def successors(identity: Identity, count: int) -> list[bytes]:
    """Return the client_ids of the next keys, in the order of their use."""
    present = identity.client_key.generation
    return [SigningKey(_seed(identity, present + step)).public for step in range(1, count + 1)]
