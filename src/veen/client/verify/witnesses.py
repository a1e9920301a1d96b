"""Check of the cosignatures that a policy requires, made when a client connects if its context requires it.

A quorum on the newest note shows that all clients of those witnesses see one list of checkpoints of this hub
(docs/witnesses.md). It proves nothing about entries after the newest listed checkpoint.
"""

from pathlib import Path
from typing import Final

from veen.client.errors import HubRefused, LocalError
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found
from veen.client.verify.outer import OuterReader
from veen.core.tlog.policy import CosignedCheckpoint, WitnessPolicy
from veen.core.tlog.tree import QuorumError, WitnessPolicyError

_MAX_BYTES: Final = 1 << 20


def read_witness_policy(path: Path) -> WitnessPolicy:
    """Read a policy file. Raise LocalError if it cannot be read, WitnessPolicyError if it is invalid."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise LocalError(f"{path}: the witness policy cannot be read: {exc.strerror}") from exc
    try:
        return WitnessPolicy.parse(data.decode())
    except UnicodeDecodeError as exc:
        raise WitnessPolicyError(f"{path}: not UTF-8 text") from exc
    except WitnessPolicyError as exc:
        raise WitnessPolicyError(f"{path}: {exc.what}") from exc


async def check_cosigned(session: HubSession, policy: WitnessPolicy) -> CosignedCheckpoint:
    """Return the newest note of the hub if the policy accepts it. Raise QuorumError if not, or without an outer log.

    The key of the log follows from the pin of the session, so a policy that lists another log of the same name is not
    enough.
    """
    reader = OuterReader(session)
    try:
        vkey = await reader.vkey()
        note, _ = await reader.note()
    except HubRefused as exc:
        if not is_not_found(exc):
            raise
        raise QuorumError("the hub publishes no note of an outer log, so nobody can cosign it") from exc
    accepted = policy.check(note)
    if accepted.log != vkey:
        raise QuorumError(f"the policy lists another key for {vkey.name} than the one that the hub's own key binds")
    return accepted
