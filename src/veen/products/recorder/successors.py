"""The client keys that follow a producer's present one, known before they are used (decision 191).

A token names one client key (D-49), and a key must be replaced after a day (KEX1+). So that an agent can do this itself
at a hub that asks for tokens, its next keys follow from the identity: key number g has the seed

    HKDF(dh_sk, info = "veen/recorder-client-key" || u64be(g))

Whoever has the identity computes them; nobody else can link one to another. `veen recorder init` lets the admin issue
tokens for as many of them as there are days in the tokens' ttl. When they are used up, the agent keeps its last key and
says so in every heartbeat, as decision 121 has it.
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
    """The seed of the key that follows the present one."""
    return _seed(identity, identity.client_key.generation + 1)


def successors(identity: Identity, count: int) -> list[bytes]:
    """The client_ids of the next keys, in the order of their use."""
    present = identity.client_key.generation
    return [SigningKey(_seed(identity, present + step)).public for step in range(1, count + 1)]
