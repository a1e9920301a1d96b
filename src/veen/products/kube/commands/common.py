"""Parts shared by the commands of `veen kube`: options, and the universe with its keys on disk."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.products.kube.cluster import Cluster, HubStatus
    from veen.products.kube.objects import HubFacts, Manifest
    from veen.products.kube.secrets import NamespaceKeys
    from veen.products.kube.universe import Tenant, Universe

_MAX_UNIVERSE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 64 << 20

UNIVERSE = click.option(
    "-f", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("universe.toml"),
    show_default=True, help="File of the universe; its keys are in the directory `keys` beside it.",
)  # fmt: skip
CONTEXT = click.option("--kube-context", "context", required=True, help="Context of kubectl. No default.")
WITHIN = click.option("--within", type=SPAN, default="10m", show_default=True, help="Timeout for a pod or a self-test.")
FORCE = click.option(
    "--force-conflicts", "force", is_flag=True, help="Take over fields that another manager of the cluster has set."
)
DATA_DIR = "/var/lib/veen"  # of a hub, in its pod
SHOW_KEYS = ("veen-cli", "hub", "key", "show", DATA_DIR, "--json")
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
        raise local_failure(f"{path}: file not found", "`veen kube init` writes one; --file names another") from None
    except UnicodeDecodeError:
        raise local_failure(f"{path} is not UTF-8 text", "give TOML or YAML") from None


def parse(text: str, parse: Any) -> "Universe":
    from veen import __version__

    universe: Universe = parse(text, __version__)
    return universe


def universe_of(path: Path) -> "tuple[Universe, dict[str, HubFacts]]":
    from veen.products.kube.secrets import facts_of_universe
    from veen.products.kube.universe import parse_universe

    universe = parse(read_text(path), parse_universe)
    return universe, facts_of_universe(universe, keys_of(path))


def secrets_of(universe: "Universe", path: Path) -> "list[Manifest]":
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.secrets import NamespaceKeys

    places = [(hub, NamespaceKeys(keys_of(path), namespace_of(hub))) for hub in (None, *universe.tenants)]
    bridges = [bridge_place(universe, path, bridge.name).bridge_secret(bridge.name) for bridge in universe.bridges]
    return [o for hub, place in places for o in place.secrets(hub)] + [o for o in bridges if o is not None]


def settle_births(cluster: "Cluster", universe: "Universe", path: Path) -> list[str]:
    """Remove the birth certificates of hubs that have begun their log; return their namespaces.

    With a certificate a later pod on a blank volume would begin a second log under the same key, which proves an honest
    hub dishonest (D-121). The local file is removed first: after any crash no Secret is made with it again. Running
    pods keep their mounted files; the next pod gets a Secret without it.
    """
    from veen.products.kube.objects import keys_secret_of, namespace_of
    from veen.products.kube.render import to_yaml
    from veen.products.kube.secrets import BIRTH_FILE, NamespaceKeys

    present = {hub.namespace: hub for hub in cluster.hubs()}
    settled = []
    for hub in (None, *universe.tenants):
        place = NamespaceKeys(keys_of(path), namespace_of(hub))
        status = present.get(place.namespace)
        if status is None:
            continue
        name = place.facts().keys_secret or keys_secret_of(hub)
        is_given = BIRTH_FILE in cluster.secret_files(place.namespace, name)
        if not (is_given or place.has_birth) or not (status.ready or _has_begun(cluster, status)):
            continue
        place.drop_birth()
        if is_given:
            cluster.delete("secret", place.namespace, name)
            cluster.create(to_yaml(o for o in place.secrets(hub) if o["metadata"]["name"] == name))
            settled.append(place.namespace)
    return settled


def _has_begun(cluster: "Cluster", hub: "HubStatus") -> bool:
    """Return True if a hub that is not ready has a log: a tenant without its authority has."""
    from veen.products.kube.cluster import ClusterFailed

    try:
        return bool(cluster.execute_in(hub.namespace, hub.name, SHOW_KEYS))
    except ClusterFailed:  # it has no container that runs, or no identity in it
        return False


def apply_objects(cluster: "Cluster", objects: "Sequence[Manifest]", output: Output, *, force: bool) -> None:
    """Apply objects; a StatefulSet of an earlier release is recreated, while its pod keeps running."""
    from veen.products.kube.render import to_yaml

    for workload in (o for o in objects if o["kind"] == "StatefulSet"):
        if cluster.replace_statefulset(workload):
            output.notice(
                f"StatefulSet {workload['metadata']['name']} is recreated: podManagementPolicy cannot be changed; "
                "its pod stays"
            )
    if objects:
        cluster.apply(to_yaml(objects), force=force)


def apply_namespaces(cluster: "Cluster", objects: "Sequence[Manifest]", *, force: bool) -> None:
    """Apply the namespaces, and the operator's rights in them."""
    from veen.products.kube.render import to_yaml

    cluster.apply(to_yaml(o for o in objects if o["kind"] == "Namespace"), force=force)
    bindings = [o for o in objects if o["kind"] == "RoleBinding"]
    cluster.apply(to_yaml(bindings), force=force)
    for binding in bindings:
        cluster.wait_access(binding["metadata"]["namespace"])


def bridge_place(universe: "Universe", path: Path, name: str) -> "NamespaceKeys":
    """Return the keys of the namespace in which a bridge runs."""
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.secrets import NamespaceKeys

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


def find_mounted_secrets(objects: Sequence[Any]) -> frozenset[tuple[str, str]]:
    """Return the Secrets that pods mount, whose absence is then no fault."""
    from veen.products.kube import rules

    return rules.find_mounted_secrets(objects)


def local_failure(what: str, hint: str) -> Fail:
    return Fail("E.LOCAL", what, "nothing was changed", hint)


def hub_named(universe: "Universe", name: str) -> "Tenant | None":
    """Return a hub of the universe by the id of its tenant; None for `authority`."""
    return None if name == "authority" else universe.tenant(name)


def edit_universe(path: Path, edit: Callable[[Any], None]) -> "Universe":
    """Change universe.toml, keeping comments and order; change nothing if the result would be invalid."""
    import tomllib

    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from veen.products.kube.universe import parse_universe

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
