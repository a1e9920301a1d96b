"""Fixed keys, streams and tokens, and a builder of messages, for tests of admission and of the whole hub."""

from dataclasses import replace

from veen import native
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.hub.admission.decide import Resolver
from veen.hub.admission.policy import Policy
from veen.storage.state import Cap, LogState

HUB, ALICE, BOB, ISSUER, STRANGER = (SigningKey(bytes([n]) * 32) for n in (2, 1, 3, 9, 8))
ROUTING_KEY = routing_key_of(hub_id_of(HUB.public))
STREAM, OTHER_STREAM = stream_id_of("orders"), stream_id_of("other")
LABEL = label_of(ROUTING_KEY, STREAM, 0)
NOW = 1_700_000_000
BULK = PRESETS["bulk"]
WORKERS = 0 if native.LOADED.module is None else 2  # threads of the native module where it is, or none
CIPHERTEXT = bytes(32) + (20).to_bytes(4, "big") + (24).to_bytes(4, "big") + b"h" * 20 + b"b" * 24

TOKEN = CapToken.issue(ISSUER, ALICE.public, [STREAM], ttl=600, rate=Rate(per_sec=2, burst=5))
FREE_TOKEN = CapToken.issue(ISSUER, ALICE.public, [STREAM], ttl=10**9)


def msg(key=ALICE, *, seq=1, ack=0, token=TOKEN, label=LABEL, profile=BULK, ciphertext=CIPHERTEXT, **changes):
    """A signed message; `changes` are applied before signing."""
    message = Msg.compose(
        key,
        profile_id=profile.profile_id(),
        label=label,
        client_seq=seq,
        prev_ack=ack,
        auth_ref=token.auth_ref() if token else None,
        ciphertext=ciphertext,
    )
    if changes:
        message = replace(message, **changes)
        message = replace(message, sig=key.sign(message.signing_digest()))
    return message


def policy(**changes):
    return Policy(**{"trusted_issuers": {ISSUER.public: None}, **changes})


def resolver(*streams, epoch_sec=0, skew=60):
    built = Resolver(ROUTING_KEY, epoch_sec, skew)
    built.add(streams or (STREAM,))
    return built


def state(*tokens, limits=DEFAULT_LIMITS, issued_at=NOW):
    built = LogState(limits)
    for token in tokens or (TOKEN,):
        built.caps[token.auth_ref()] = Cap.begin(token, limits, issued_at)
    built.hub_ts = issued_at
    return built


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
