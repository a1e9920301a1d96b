"""From a context or a URL to a client: settings, keys, and the rotation of the client key.

Rules and advice about messages for the clients of a person or program, by what its keyring has.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from veen.client.client import Client
from veen.client.config.projects import read_both
from veen.client.config.settings import ClientSettings, resolve_with_files
from veen.client.errors import IdentityInUse, IdentityMissing, NotPinned, SettingsError
from veen.client.home import Home
from veen.client.identity.identity import Identity, check_name
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore, create_identity, open_identity
from veen.client.identity.rotation import KeyHolder, KeystoreKeys
from veen.client.identity.stream_keys import new_stream_keys
from veen.client.identity.unlocking import make_identity, open_without_asking
from veen.client.identity.workers import SlotKeys, take_slot
from veen.client.send.captokens import TokenStore
from veen.client.transport.calls import Retry
from veen.client.verify.pin import HubPin
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.policies import realm_id_of

# An identity with the keys of this stream is part of a recorder. A product may be named here only: it is a room above.
_RECORDER: Final = (stream_id_of("record/infrastructure/changes"), "veen.products.recorder.rules")
_CLASSES_ID: Final = Ht("veen/label-class", realm_id_of("default"))  # of the default realm (001 spec-2 §1.3)


def rules_of(keyring: Keyring) -> dict[str, Any]:
    """Return the options of `Client.connect` about rules and advice. Modules are imported only if they are needed."""
    options: dict[str, Any] = {}
    if keyring.has(_RECORDER[0]):
        options["rules"] = [import_module(_RECORDER[1]).RecorderRules()]
    if keyring.has(_CLASSES_ID):
        from veen.api.label_advice import LabelClassAdvisor

        options["advisor"] = LabelClassAdvisor()
    return options


LOG: Final = logging.getLogger("veen")
_LOCK_TRIES: Final = 100
_LOCK_PAUSE_SECONDS: Final = 0.05


@dataclass(slots=True)
class Connector:
    """Everything that is needed to connect, and to connect again. Owned by one connection."""

    settings: ClientSettings
    home: Home
    keystore: Keystore
    worker: bool
    make_keys: bool  # of streams

    @property
    def url(self) -> str:
        return str(self.settings.hub.value)

    @property
    def name(self) -> str:
        return self.keystore.identity.name

    async def connect(self) -> Client:
        """Return a client, whose client key rotates by itself."""
        if not self.worker:
            return await self._connect_as(self.home, self.keystore.identity, KeystoreKeys(self.keystore))
        slots = take_slot(self.home, self.keystore.identity, int(time.time()))
        while True:
            slot = await asyncio.to_thread(next, slots)
            try:
                client = await self._connect_as(slot.home, slot.identity, SlotKeys(slot))
            except IdentityInUse:  # another process took the slot
                continue
            LOG.debug("worker %d of %s signs as %s", slot.number, self.name, client.client_id.hex())
            return client

    async def _connect_as(self, home: Home, identity: Identity, holder: KeyHolder) -> Client:
        settings = self.settings
        client = await Client.connect(
            self.url,
            pin=HubPin.parse(settings.hub_pk.value, settings.hub_id.value),
            identity=identity,
            keyring=self.keystore.secrets.keyring,
            home=home,
            mode=settings.mode.value,
            ca_file=settings.path("ca_file"),
            token_file=settings.path("token_file"),
            insecure_http=bool(settings.insecure_http.value),
            retry=Retry(seconds=settings.wait.value),
            call_seconds=settings.timeout.value,
            keys_learned=None if self.worker else self._keep_keys,
            **rules_of(self.keystore.secrets.keyring),
            holder=holder,
            tokens=TokenStore(self.home.tokens_fs(self.name)),
        )
        try:
            await self._check_witnesses(client)
        except BaseException:
            await client.aclose()
            raise
        return client

    async def _check_witnesses(self, client: Client) -> None:
        """Raise QuorumError, or log a warning, if the hub lacks the cosignatures that the context requires."""
        path, rule = self.settings.path("witness_policy"), self.settings.witnesses.value
        if path is None or rule == "off":
            return
        from veen.client.verify.witnesses import read_witness_policy
        from veen.core.tlog.tree import QuorumError

        try:
            await client.check_witnesses(await asyncio.to_thread(read_witness_policy, path))
        except QuorumError as exc:
            if rule == "require":
                raise
            LOG.warning("the hub at %s lacks the cosignatures that %s asks for: %s", self.url, path, exc)

    def _keep_keys(self, keyring: Keyring) -> None:
        """Store generations of keys that were found in a stream. A worker, which has no lock, finds them again."""
        self.keystore.save(replace(self.keystore.secrets, keyring=keyring))

    async def new_keys(self, client: Client, stream: str) -> StreamKeys:
        """Make keys for a stream that nobody has written to, and store them in the keystore."""
        if not self.worker:
            keys = await new_stream_keys(client, self.keystore, stream)
        else:
            keys = await self._worker_keys(client, stream)
        LOG.info("made the keys of the stream %r; they are kept in the keystore of %s", stream, self.name)
        return keys

    async def _worker_keys(self, client: Client, stream: str) -> StreamKeys:
        """Make keys as a worker: take the lock of the identity for a moment, and use the keys of a worker that was
        first."""
        for left in range(_LOCK_TRIES - 1, -1, -1):
            try:
                with self.home.lock(self.name):
                    key = self.keystore.unlock_key
                    self.keystore = await asyncio.to_thread(open_identity, self.home, self.name, None, key=key)
                    ring = self.keystore.secrets.keyring
                    stored = [keys for keys in ring.entries if keys.stream_id == StreamKeys.create(stream).stream_id]
                    if stored:
                        client.learn_keys(stored[0])
                        return stored[0]
                    return await new_stream_keys(client, self.keystore, stream)
            except IdentityInUse:
                if not left:
                    raise
                await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        raise AssertionError  # the last try returned or raised


def connector(
    context: str | None,
    *,
    pin: str | None,
    identity: str | None,
    passphrase: str | None,
    options: Mapping[str, str | None],
    home: Home | None,
    worker: bool,
    make_keys: bool | None,
) -> Connector:
    """Resolve the settings and open the keystore. Blocks: stretching a passphrase takes a while."""
    user_home = home or Home.default()
    is_url = context is not None and "://" in context
    flags = {**options, "hub_pk": pin, "identity": identity, ("hub" if is_url else "context"): context}
    settings = resolve_with_files(flags, os.environ, *read_both(Path.cwd(), user_home.config_file))
    if settings.hub.value is None:
        raise SettingsError(
            "E.LOCAL.CONTEXT",
            "no hub configured",
            "neither the call, VEEN_HUB, VEEN_CONTEXT nor the configuration names a hub",
            "veen hub start --dev, or: veen context add NAME --hub URL --pin ed25519:HEX",
        )
    if settings.hub_pk.value is None:
        raise NotPinned(f"no key of the hub at {settings.hub.value} is pinned")
    keystore_home, name = _identity_place(user_home, settings, make_keys)
    keystore = _open_keystore(user_home, keystore_home, name, settings, passphrase, make_keys)
    return Connector(settings, keystore_home, keystore, worker, make_keys is not False)


def _identity_place(home: Home, settings: ClientSettings, make_keys: bool | None) -> tuple[Home, str]:
    name: str | None = settings.identity.value
    if name is not None and ("/" in name or name in (".", "..")):
        home, name = Home.at(Path(name).expanduser().absolute()), None
    if name is None:
        names = home.identities()
        if not names and make_keys:
            return home, "default"
        if len(names) != 1:
            cause = (
                f"there are {', '.join(names)}, and none of them is selected" if names else f"{home.data} holds no keys"
            )
            raise SettingsError(
                IdentityMissing.code,
                "several identities exist" if names else "there is no identity yet",
                cause,
                f"give identity={names[0]!r}, or run: veen config set identity {names[0]}"
                if names
                else "veen keygen --name NAME, or give make_keys=True",
            )
        name = names[0]
    return home, check_name(name)


def _open_keystore(
    user_home: Home,
    home: Home,
    name: str,
    settings: ClientSettings,
    passphrase: str | None,
    make_keys: bool | None,
) -> Keystore:
    file = settings.passphrase_file_for(name)
    if not home.has_identity(name) and (make_keys or (make_keys is None and settings.may_make_identity(name))):
        return _make_keystore(user_home, home, name, file, passphrase)
    if file is None and (home.config / f"{name}.passphrase").exists():  # written by `_make_keystore`
        file = home.config / f"{name}.passphrase"
    if passphrase is not None:
        return open_identity(home, name, passphrase)
    keystore = open_without_asking(home, name, passphrase_file=file, agent_home=user_home)
    if keystore is None:
        raise SettingsError(
            "E.LOCAL.INPUT",
            f"the passphrase of {name} is required",
            "its keystore is sealed, no agent has it open, and a program cannot prompt for it",
            "veen agent start, then any command as this identity; or give passphrase_file=…;"
            " on a desktop: veen keystore remember",
        )
    return keystore


def _make_keystore(user_home: Home, home: Home, name: str, file: Path | None, passphrase: str | None) -> Keystore:
    if passphrase is not None:
        from veen.client.identity.passphrases import check_passphrase

        check_passphrase(passphrase, name)
        keystore = create_identity(home, name, passphrase, now=int(time.time()))
        LOG.info("made the identity %s, sealed with the passphrase that was given", name)
        return keystore
    file = file or user_home.config / f"{name}.passphrase"
    keystore = make_identity(home, name, file)
    LOG.info("made the identity %s; its keystore is sealed by the passphrase in %s", name, file)
    return keystore
