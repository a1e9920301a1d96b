"""Rules about messages that a client of a person or program gets, by the products that its keyring belongs to."""

from typing import Final

from veen.client.identity.keyring import Keyring
from veen.client.send.rules import SendRule
from veen.core.labels import stream_id_of

_RECORDER_ID: Final = stream_id_of("record/infrastructure/changes")  # whoever has its keys is part of a recorder


def rules_of(keyring: Keyring) -> list[SendRule]:
    """Return the rules to give to `Client.connect`."""
    if not keyring.has(_RECORDER_ID):
        return []
    from veen.products.recorder.rules import RecorderRules

    return [RecorderRules()]
