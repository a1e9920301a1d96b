"""Fixed keys, streams and tokens, and a builder of messages, for tests of admission and of the whole hub."""

from dataclasses import replace

from veen.core.captoken import CapToken, Rate
from veen.core.checkpoint import Checkpoint
from veen.core.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.msg import Msg
from veen.core.profile import PRESETS
from veen.hub.policy import Policy
from veen.hub.resolver import Resolver
from veen.storage.state import Cap, State

HUB, ALICE, BOB, ISSUER, STRANGER = (SigningKey(bytes([n]) * 32) for n in (2, 1, 3, 9, 8))
ROUTING_KEY = routing_key_of(hub_id_of(HUB.public))
STREAM, OTHER_STREAM = stream_id_of("orders"), stream_id_of("other")
LABEL = label_of(ROUTING_KEY, STREAM, 0)
NOW = 1_700_000_000
BULK = PRESETS["bulk"]
CIPHERTEXT = bytes(32) + (20).to_bytes(4, "big") + (24).to_bytes(4, "big") + b"h" * 20 + b"b" * 24

TOKEN = CapToken.issue(ISSUER, ALICE.public, [STREAM], ttl=600, rate=Rate(per_sec=2, burst=5))
FREE_TOKEN = CapToken.issue(ISSUER, ALICE.public, [STREAM], ttl=10**9)


def msg(key=ALICE, *, seq=1, ack=0, token=TOKEN, label=LABEL, profile=BULK, ciphertext=CIPHERTEXT, **changes):
    """A signed message; `changes` are applied before signing."""
    made = Msg.compose(
        key,
        profile_id=profile.profile_id(),
        label=label,
        client_seq=seq,
        prev_ack=ack,
        auth_ref=token.auth_ref() if token else None,
        ciphertext=ciphertext,
    )
    if changes:
        made = replace(made, **changes)
        made = replace(made, sig=key.sign(made.signing_digest()))
    return made


def policy(**changes):
    return Policy(**{"trusted_issuers": {ISSUER.public: None}, **changes})


def resolver(*streams, epoch_sec=0, skew=60):
    made = Resolver(ROUTING_KEY, epoch_sec, skew)
    made.add(streams or (STREAM,))
    return made


def state(*tokens, limits=DEFAULT_LIMITS, issued_at=NOW):
    made = State(limits, lambda label_row, client_id: None)
    for token in tokens or (TOKEN,):
        made.caps[token.auth_ref()] = Cap.begin(token, limits, issued_at)
    made.hub_ts = issued_at
    return made


class Signer:
    """The hub's one key, at all times."""

    def signing_key_at(self, hub_ts):
        return HUB


def seal(files, upto_seq, mmr_root, hub_ts):
    return Checkpoint.issue(
        HUB, label_prev=files.label, label_curr=files.label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=files.epoch
    )


def forged(token):
    """The same claims, signed by somebody else."""
    return replace(token, sig_chain=(STRANGER.sign(H(b"forged")),))
