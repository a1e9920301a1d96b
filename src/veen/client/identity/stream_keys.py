"""Keys for a stream on first use: made only if nobody has written to it, and stored before anything is sealed with
them."""

from dataclasses import replace

from veen.client.client import Client
from veen.client.errors import LocalError
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore


class StreamInUse(LocalError, code="E.LOCAL.STREAM_IN_USE"):
    """Somebody has written to a stream that has no keys here."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


async def new_stream_keys(client: Client, keystore: Keystore, stream: str) -> StreamKeys:
    """Make keys, store them in the keystore and have the client use them. Raise StreamInUse if the hub has entries.

    The client must hold the lock of the identity, as every client of the identity itself does.
    """
    keys = StreamKeys.create(stream, owner_pk=keystore.identity.id_sign_pk)
    if await client.has_entries(keys.stream_id):
        raise StreamInUse(stream)
    keystore.save(replace(keystore.secrets, keyring=keystore.secrets.keyring.with_keys(keys)))
    client.learn_keys(keys)
    return keys
