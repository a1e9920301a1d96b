"""What the commands of `veen kube` share: options, and the universe with its keys on disk."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.output import Fail
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.kube.cluster import Cluster
    from veen.kube.objects import HubFacts, Manifest
    from veen.kube.secrets import NamespaceKeys
    from veen.kube.universe import Tenant, Universe

_MAX_UNIVERSE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 64 << 20

UNIVERSE = click.option(
    "-f", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("universe.toml"),
    show_default=True, help="The universe; its keys are in the directory `keys` beside it.",
)  # fmt: skip
CONTEXT = click.option("--kube-context", "context", required=True, help="The context of kubectl; there is no default.")
WITHIN = click.option(
    "--within", type=SPAN, default="10m", show_default=True, help="How long a pod or a self-test may take."
)
WORKLOADS = ("StatefulSet", "Deployment")


def is_hub(manifest: "Manifest") -> bool:
    """Return True for the workload of a hub."""
    labels = manifest["metadata"].get("labels", {})
    return manifest["kind"] in WORKLOADS and labels.get("app.kubernetes.io/component") == "hub"


def keys_of(path: Path) -> Path:
    return path.parent / "keys"


def read_text(path: Path, at_most: int = _MAX_UNIVERSE_BYTES) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(at_most + 1)
        if len(data) > at_most:
            raise local_failure(f"{path} has more than {at_most} bytes", "give a smaller file")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise local_failure(
            f"{path}: there is no such file", "`veen kube init` writes one; --file names another"
        ) from None
    except UnicodeDecodeError:
        raise local_failure(f"{path} is not UTF-8 text", "give TOML or YAML") from None


def parse(text: str, parse: Any) -> "Universe":
    from veen import __version__

    universe: Universe = parse(text, __version__)
    return universe


def universe_of(path: Path) -> "tuple[Universe, dict[str, HubFacts]]":
    from veen.kube.secrets import facts_of_universe
    from veen.kube.universe import parse_universe

    universe = parse(read_text(path), parse_universe)
    return universe, facts_of_universe(universe, keys_of(path))


def secrets_of(universe: "Universe", path: Path) -> "list[Manifest]":
    from veen.kube.objects import namespace_of
    from veen.kube.secrets import NamespaceKeys

    places = [(hub, NamespaceKeys(keys_of(path), namespace_of(hub))) for hub in (None, *universe.tenants)]
    bridges = [bridge_place(universe, path, bridge.name).bridge_secret(bridge.name) for bridge in universe.bridges]
    return [o for hub, place in places for o in place.secrets(hub)] + [o for o in bridges if o is not None]


def settle_births(cluster: "Cluster", universe: "Universe", path: Path) -> list[str]:
    """Remove the birth certificates of hubs that are ready; return their namespaces.

    A hub that is ready has begun its log. With a certificate a later pod on a blank volume would begin a second log
    under the same key, which proves an honest hub dishonest (D-121). The file here goes first: whatever happens then,
    no Secret is made with it again. Pods that run keep what they have mounted; the next one finds a Secret without it.
    """
    from veen.kube.objects import keys_secret_of, namespace_of
    from veen.kube.render import to_yaml
    from veen.kube.secrets import BIRTH_FILE, NamespaceKeys

    ready = {hub.namespace for hub in cluster.hubs() if hub.ready}
    settled = []
    for hub in (None, *universe.tenants):
        place = NamespaceKeys(keys_of(path), namespace_of(hub))
        if place.namespace not in ready:
            continue
        place.drop_birth()
        name = place.facts().keys_secret or keys_secret_of(hub)
        if BIRTH_FILE in cluster.secret_files(place.namespace, name):
            cluster.delete("secret", place.namespace, name)
            cluster.create(to_yaml(o for o in place.secrets(hub) if o["metadata"]["name"] == name))
            settled.append(place.namespace)
    return settled


def bridge_place(universe: "Universe", path: Path, name: str) -> "NamespaceKeys":
    """The keys of the namespace in which a bridge runs."""
    from veen.kube.objects import namespace_of
    from veen.kube.secrets import NamespaceKeys

    for bridge in universe.bridges:
        if bridge.name == name:
            tenant = None if bridge.tenant is None else universe.tenant(bridge.tenant)
            return NamespaceKeys(keys_of(path), namespace_of(tenant))
    names = ", ".join(bridge.name for bridge in universe.bridges) or "none"
    raise local_failure(f"no bridge is called {name!r}; there are {names}", f"add it to {path}: [[bridges]]")


def documents(path: Path) -> "list[Any]":
    import yaml

    if str(path) == "-":
        text = sys.stdin.buffer.read(_MAX_MANIFEST_BYTES).decode("utf-8", "replace")
    else:
        text = read_text(path, _MAX_MANIFEST_BYTES)
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, RecursionError) as exc:
        raise local_failure(f"{path} is not YAML: {str(exc).splitlines()[0]}", "give manifests in YAML") from None


def mounted_secrets(objects: Sequence[Any]) -> frozenset[tuple[str, str]]:
    """Names of Secrets that pods mount, so that their absence is no fault."""
    from veen.kube import rules

    return rules.mounted_secrets(objects)


def local_failure(what: str, hint: str) -> Fail:
    return Fail("E.LOCAL", what, "nothing was changed", hint)


def hub_named(universe: "Universe", name: str) -> "Tenant | None":
    """A hub of the universe by the id of its tenant; `authority` is None."""
    return None if name == "authority" else universe.tenant(name)


def edit_universe(path: Path, edit: Callable[[Any], None]) -> "Universe":
    """Change universe.toml, its comments and its order left as they are; nothing if the outcome cannot be used."""
    import tomllib

    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from veen.kube.universe import parse_universe

    text = read_text(path)
    parse(text, parse_universe)
    expected = tomllib.loads(text)
    edit(expected)
    form = local_failure(f"{path} is written in a form that is not edited", "change the file by hand")
    try:
        document = tomlkit.parse(text)
        edit(document)
        changed = tomlkit.dumps(document)
        if tomllib.loads(changed) != expected:
            raise form
    except (TOMLKitError, tomllib.TOMLDecodeError):
        raise form from None
    universe = parse(changed, parse_universe)
    path.write_text(changed, "utf-8")
    return universe
