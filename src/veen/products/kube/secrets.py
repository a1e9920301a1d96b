"""Keys of hubs on disk, beside universe.toml, and the Secrets made of them once (spec-4 §9.3, D-121, D-146).

keys/NAMESPACE/hub/        mounted at /etc/veen/keys: the hub's key and birth certificate, or the root key
keys/NAMESPACE/selftest/   the issuer whose tokens self-tests use
keys/NAMESPACE/bridges/    for each bridge that runs there, its keystore and its tokens
keys/NAMESPACE/facts.json  public facts for manifests
keys/NAMESPACE/next.pub    the next key of the hub, while a rotation is under way
keys/destroyed/            keys of tenants that were destroyed
"""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import StatedError
from veen.products.kube.objects import HubFacts, Manifest, keys_secret_of, namespace_of
from veen.products.kube.universe import Tenant, Universe
from veen.storage.keys.identity import key_file_name, write_birth, write_private_key

_FACTS: Final = "facts.json"
_ISSUER: Final = "issuer.key"
_NEXT: Final = "next.pub"  # of a rotation that is not finished
_STAGED: Final = "next.seed"  # of a rotation that has just begun
BIRTH_FILE: Final = "birth.json"
_MAX_FACTS_BYTES: Final = 65536


class KeysMissing(StatedError):
    """A hub of the universe has no keys yet, or they cannot be read."""

    hint = "`veen kube tenant new ID` makes the keys of a tenant, `veen kube init` those of the authority."


class KeysExist(StatedError):
    """Keys are created once: a second set would be another hub."""

    hint = "Leave them: a tenant keeps its keys as long as its log. For another hub choose another id."


class RotationRefused(StatedError):
    """The key of this hub is not rotated by a Secret."""

    hint = "Delete its pod: the next one has another key under the same root, which clients pin."


class NamespaceKeys:
    """The key directory of one namespace."""

    def __init__(self, keys: Path, namespace: str) -> None:
        self.directory, self.namespace = keys / namespace, namespace

    def facts(self) -> HubFacts:
        path = self.directory / _FACTS
        try:
            if path.stat().st_size > _MAX_FACTS_BYTES:
                raise KeysMissing(f"{path} is too large: it was not written by `veen kube`")
            table = json.loads(path.read_text("utf-8"))
            if not table["selftest_streams"]:
                raise ValueError("self-tests have no stream")
            return HubFacts(
                pin=str(table["pin"]),
                selftest_issuer=str(table["selftest_issuer"]),
                selftest_streams=tuple(map(str, table["selftest_streams"])),
                keys_secret=None if table.get("keys_secret") is None else str(table["keys_secret"]),
            )
        except FileNotFoundError as exc:
            raise KeysMissing(f"{self.directory.parent} has no keys of {self.namespace}") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise KeysMissing(f"{path} was not written by `veen kube`") from exc

    def secrets(self, tenant: Tenant | None) -> list[Manifest]:
        """Return the Secrets of the namespace, immutable."""
        name = self.facts().keys_secret or keys_secret_of(tenant)
        return [
            self._secret(name, sorted((self.directory / "hub").iterdir())),
            self._secret("veen-selftest-issuer", [self.directory / "selftest" / _ISSUER]),
        ]

    def bridge_secret(self, bridge: str) -> Manifest | None:
        """Return the Secret of a bridge that runs in this namespace; None before its keys are stored."""
        directory = self.directory / "bridges" / bridge
        return self._secret(f"veen-bridge-{bridge}-keys", sorted(directory.iterdir())) if directory.is_dir() else None

    def keep_bridge_keys(self, bridge: str, files: Mapping[str, bytes]) -> None:
        """Store the files mounted at /secrets of a bridge, once: its keystore, and tokens for the target."""
        directory = self.directory / "bridges" / bridge
        if directory.exists():
            raise KeysExist(f"{directory} has keys already")
        for name, data in sorted(files.items()):
            _write_private(directory / name, data)

    def begin_rotation(self, tenant: Tenant | None) -> bytes:
        """Return the public half of the next key, created if missing; name the Secret that contains it (D-146)."""
        facts = self.facts()
        self.check_rotation(tenant)
        path = self.directory / _NEXT
        if path.exists():
            return bytes.fromhex(path.read_text("ascii"))
        # The seed is stored first, so that an interrupted command continues with the same key and makes no third one.
        staged = self.directory / _STAGED
        if not staged.exists():
            _replace_private(staged, secrets.token_bytes(32).hex().encode())
        key = SigningKey(bytes.fromhex(staged.read_text("ascii")))
        first = keys_secret_of(tenant)
        names = {path.name for path in (self.directory / "hub").glob("*.key")}
        count = len(names - {key_file_name(key.public)})  # a separate name for each: Secrets never change
        following = f"{first}-next" if count == 1 else f"{first}-next-{count}"
        if key_file_name(key.public) not in names:
            write_private_key(self.directory / "hub", key)
        self.drop_birth()  # the log has begun
        self.write_facts(replace(facts, keys_secret=following))
        _replace_private(path, key.public.hex().encode())
        staged.unlink()
        return key.public

    def check_rotation(self, tenant: Tenant | None) -> None:
        """Refuse for a disposable hub."""
        if tenant is not None and tenant.storage is None:
            raise RotationRefused(f"the hub of {self.namespace} is disposable: each new pod has a new key")

    @property
    def is_rotating(self) -> bool:
        """True from the start of a rotation until the hub has taken the key."""
        return (self.directory / _NEXT).exists() or (self.directory / _STAGED).exists()

    def finish_rotation(self) -> None:
        """Remove the marker of a rotation: the hub has taken the next key."""
        (self.directory / _NEXT).unlink()

    @property
    def has_birth(self) -> bool:
        """True while the keys here could begin a log: the hub was never ready yet."""
        return (self.directory / "hub" / BIRTH_FILE).exists()

    def drop_birth(self) -> None:
        """Remove the birth certificate. A hub that has begun its log must never begin another one (D-121)."""
        (self.directory / "hub" / BIRTH_FILE).unlink(missing_ok=True)

    def destroy(self, now: int) -> Path | None:
        """Put the keys aside, so that a tenant of the same id begins with others; where they are."""
        if not self.directory.exists():
            return None
        place = self.directory.parent / "destroyed"
        place.mkdir(mode=0o700, exist_ok=True)
        first = place / f"{self.namespace}-{now}"
        others = (place / f"{first.name}-{number}" for number in count(2))  # destroyed twice within a second
        return self.directory.rename(next(path for path in chain([first], others) if not path.exists()))

    def write_facts(self, facts: HubFacts) -> None:
        table = {
            "pin": facts.pin,
            "selftest_issuer": facts.selftest_issuer,
            "selftest_streams": list(facts.selftest_streams),
        }
        if facts.keys_secret is not None:
            table["keys_secret"] = facts.keys_secret
        _replace_private(self.directory / _FACTS, (json.dumps(table, indent=2) + "\n").encode())

    def _secret(self, name: str, files: list[Path]) -> Manifest:
        return {
            "apiVersion": "v1",
            "data": {path.name: base64.b64encode(path.read_bytes()).decode() for path in files},
            "immutable": True,
            "kind": "Secret",
            "metadata": {
                "labels": {"app.kubernetes.io/part-of": "veen"},
                "name": name,
                "namespace": self.namespace,
            },
            "type": "Opaque",
        }


def make_keys(keys: Path, tenant: Tenant | None, *, born_until: int) -> HubFacts:
    """Create the keys of a hub: a certificate lets it begin a log until `born_until`; a disposable one gets a root
    (D-121).
    """
    keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.chmod(0o700)
    place = NamespaceKeys(keys, namespace_of(tenant))
    if (place.directory / _FACTS).exists():
        raise KeysExist(f"{place.directory} has keys already")
    key, issuer = SigningKey(secrets.token_bytes(32)), SigningKey(secrets.token_bytes(32))
    write_private_key(place.directory / "hub", key)
    is_disposable = tenant is not None and tenant.storage is None
    if not is_disposable:
        write_birth(place.directory / "hub", key, born_until)
    _write_private(place.directory / "selftest" / _ISSUER, f"{issuer.seed.hex()}\n".encode())
    facts = HubFacts(
        pin=f"{'root:' if is_disposable else ''}ed25519:{key.public.hex()}",
        selftest_issuer=issuer.public.hex(),
        selftest_streams=(f"veen/selftest/{secrets.token_hex(8)}",),
    )
    place.write_facts(facts)  # last: the keys are there
    return facts


def facts_of_universe(universe: Universe, keys: Path) -> dict[str, HubFacts]:
    """Return the facts by namespace. Raise KeysMissing for the first hub without keys."""
    names = [namespace_of(tenant) for tenant in (None, *universe.tenants)]
    return {name: NamespaceKeys(keys, name).facts() for name in names}


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)


def _replace_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    _write_private(staged, data)
    staged.replace(path)
