"""Keys of hubs on disk, beside universe.toml, and the Secrets made of them once (spec-4 §9.3, D-121, D-146).

keys/NAMESPACE/hub/        what the hub finds in /etc/veen/keys: its key and birth certificate, or the root key
keys/NAMESPACE/selftest/   the issuer whose tokens self-tests use
keys/NAMESPACE/facts.json  what manifests may say about them
"""

import base64
import json
import secrets
from pathlib import Path
from typing import Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import StatedError
from veen.kube.objects import HubFacts, Manifest, namespace_of
from veen.kube.universe import Tenant, Universe
from veen.storage.keys.directory import write_birth, write_private_key

__all__ = ["KeysMissing", "NamespaceKeys", "facts_of_universe", "make_keys"]

_FACTS: Final = "facts.json"
_ISSUER: Final = "issuer.key"
_MAX_FACTS_BYTES: Final = 65536


class KeysMissing(StatedError):
    """A hub of the universe has no keys yet, or they cannot be read."""

    hint = "`veen kube tenant new ID` makes the keys of a tenant, `veen kube init` those of the authority."


class KeysExist(StatedError):
    """Keys are made once: a second set would be another hub."""

    hint = "Leave them: a tenant keeps its keys as long as its log. For another hub choose another id."


class NamespaceKeys:
    """The key directory of one namespace."""

    def __init__(self, keys: Path, namespace: str) -> None:
        self.directory, self.namespace = keys / namespace, namespace

    def facts(self) -> HubFacts:
        path = self.directory / _FACTS
        try:
            if path.stat().st_size > _MAX_FACTS_BYTES:
                raise KeysMissing(f"{path} is too large to be what `veen kube` wrote")
            table = json.loads(path.read_text("utf-8"))
            if not table["selftest_streams"]:
                raise ValueError("self-tests have no stream")
            return HubFacts(
                pin=str(table["pin"]),
                selftest_issuer=str(table["selftest_issuer"]),
                selftest_streams=tuple(map(str, table["selftest_streams"])),
            )
        except FileNotFoundError as exc:
            raise KeysMissing(f"there are no keys of {self.namespace} in {self.directory.parent}") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise KeysMissing(f"{path} is not what `veen kube` wrote") from exc

    def secrets(self, tenant: Tenant | None) -> list[Manifest]:
        """The Secrets of the namespace, immutable."""
        name = "veen-authority-keys" if tenant is None else "veen-hub-keys"
        return [
            self._secret(name, sorted((self.directory / "hub").iterdir())),
            self._secret("veen-selftest-issuer", [self.directory / "selftest" / _ISSUER]),
        ]

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
    """New keys of a hub: a certificate lets it begin a log until `born_until`; a disposable one gets a root (D-121)."""
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
    table = {
        "pin": facts.pin,
        "selftest_issuer": facts.selftest_issuer,
        "selftest_streams": list(facts.selftest_streams),
    }
    (place.directory / _FACTS).write_text(json.dumps(table, indent=2) + "\n", "utf-8")  # last: the keys are there
    return facts


def facts_of_universe(universe: Universe, keys: Path) -> dict[str, HubFacts]:
    """By namespace; KeysMissing names the first hub without keys."""
    names = [namespace_of(tenant) for tenant in (None, *universe.tenants)]
    return {name: NamespaceKeys(keys, name).facts() for name in names}


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)
