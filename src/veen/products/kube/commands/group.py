"""`veen kube`: hubs of a universe on Kubernetes, as plain YAML (001 spec-4, docs/kubernetes.md)."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.values import SPAN
from veen.products.kube.commands.common import (
    CONTEXT,
    FORCE,
    UNIVERSE,
    WITHIN,
    apply_namespaces,
    apply_objects,
    documents,
    find_mounted_secrets,
    is_hub,
    keys_of,
    local_failure,
    parse,
    read_text,
    secrets_of,
    settle_births,
    universe_of,
)

if TYPE_CHECKING:
    from veen.products.kube.cluster import Cluster, HubStatus
    from veen.products.kube.objects import Manifest
    from veen.products.kube.universe import Universe

kube = LazyGroup(
    "kube",
    help="Hubs on Kubernetes: one authority and its tenants, each in a namespace, from one universe.toml.",
    table={
        "bridge-keys": (
            "veen.products.kube.commands.lifecycle:bridge_keys",
            "Give a bridge its keystore and its tokens.",
        ),
        "job": ("veen.products.kube.commands.jobs:job", "Run a command or a self-test once, inside a cluster."),
        "rotate-keys": ("veen.products.kube.commands.lifecycle:rotate_keys", "Give a hub its next key."),
        "spark-pods": (
            "veen.products.kube.commands.jobs:spark_pods",
            "Pod templates and settings for Spark beside a hub.",
        ),
        "tenant": ("veen.products.kube.commands.group:tenant", "Tenants of a universe: new, list, destroy."),
        "upgrade": (
            "veen.products.kube.commands.lifecycle:upgrade",
            "Bring all hubs to another version, the authority first.",
        ),
    },
)
tenant = LazyGroup(
    "tenant",
    help="Tenants of a universe.",
    table={"destroy": ("veen.products.kube.commands.lifecycle:destroy", "Delete a tenant, its log included.")},
)


@kube.verb("init", "Begin a universe: universe.toml and the keys of its authority.")
@UNIVERSE
@click.option("--id", "universe_id", default="default", show_default=True, help="Short name of the universe.")
@click.option(
    "--born-within", type=SPAN, default="24h", show_default=True, help="Until when the hub may begin its log."
)
@output_options
def init(output: Output, path: Path, universe_id: str, born_within: int) -> None:
    """Begin a universe: write universe.toml and make the keys of its authority.

    \b
    veen kube init
    veen kube tenant new acme-prod --storage 20Gi
    veen kube render > universe.yaml
    """
    from veen.products.kube.secrets import make_keys
    from veen.products.kube.universe import parse_universe

    text = f'universe = "{universe_id}"\n\n[authority]\nstorage = "10Gi"\n'
    parse(text, parse_universe)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise local_failure(f"{path} already exists", "name another with --file") from None
    facts = make_keys(keys_of(path), None, born_until=int(time.time()) + born_within)
    output.result({"universe": universe_id, "file": str(path), "namespace": "veen-system", "pin": facts.pin})
    output.next("veen kube tenant new ID --storage 10Gi")


@tenant.verb("new", "Add a tenant and make the keys of its hub.")
@click.argument("tenant_id")
@UNIVERSE
@click.option(
    "--storage", help="Size of its volume, such as 20Gi. Without it the hub is disposable: lost with its pod."
)
@click.option(
    "--born-within", type=SPAN, default="24h", show_default=True, help="Until when the hub may begin its log."
)
@output_options
def tenant_new(output: Output, tenant_id: str, path: Path, storage: str | None, born_within: int) -> None:
    """Add a tenant to the universe and make the keys of its hub.

    \b
    veen kube tenant new acme-prod --storage 20Gi
    veen kube tenant new team1-dev
    """
    from veen.products.kube.secrets import make_keys
    from veen.products.kube.universe import parse_universe

    before = read_text(path)
    more = f'\n[[tenants]]\nid = "{tenant_id}"\n' + (f'storage = "{storage}"\n' if storage is not None else "")
    universe = parse(before.rstrip("\n") + "\n" + more, parse_universe)  # refuses a second of the same id
    added = universe.tenant(tenant_id)
    facts = make_keys(keys_of(path), added, born_until=int(time.time()) + born_within)
    path.write_text(before.rstrip("\n") + "\n" + more, "utf-8")
    output.result({"tenant": tenant_id, "namespace": added.namespace, "pin": facts.pin, "disposable": storage is None})
    output.next("veen kube render > universe.yaml")


@tenant.verb("list", "The tenants of a universe.")
@UNIVERSE
@output_options
def tenant_list(output: Output, path: Path) -> None:
    """List the tenants of a universe."""
    universe, facts = universe_of(path)
    with output.records("tenants", ("tenant", "namespace", "storage", "pin")) as records:
        for entry in universe.tenants:
            pin = facts[entry.namespace].pin
            data = {"tenant": entry.id, "namespace": entry.namespace, "storage": entry.storage, "pin": pin}
            records.add(data, [entry.id, entry.namespace, entry.storage or "disposable", pin])


@kube.verb("render", "Print the manifests of a universe.")
@UNIVERSE
@click.option("--secrets", is_flag=True, help="Print the Secrets instead: private keys, for one `kubectl create -f -`.")
@click.option(
    "--cluster",
    is_flag=True,
    help="Print the objects that an administrator applies once: the operator's account and its limits.",
)
@click.option(
    "--kustomize",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a Kustomize base to this directory instead.",
)
@output_options
def render(output: Output, path: Path, secrets: bool, cluster: bool, kustomize: Path | None) -> None:
    """Print the manifests of a universe: sorted YAML, the same bytes for the same universe.

    Private keys are not part of them.

    \b
    veen kube render > universe.yaml
    veen kube render --secrets | kubectl --context prod create -f -
    veen kube render --cluster | kubectl --context admin apply --server-side --field-manager=veen -f -
    veen kube render --kustomize base
    """
    from veen.products.kube.render import cluster_manifests, kustomization, manifests, to_yaml

    if secrets + cluster + (kustomize is not None) > 1:
        raise click.UsageError("--secrets, --cluster and --kustomize exclude each other")
    universe, facts = universe_of(path)
    if kustomize is not None:
        files = kustomization(universe, facts)
        kustomize.mkdir(parents=True, exist_ok=True)
        for name, text in sorted(files.items()):
            (kustomize / name).write_text(text, "utf-8")
        data = {"directory": str(kustomize), "files": sorted(files)}
        output.result(data, lambda: output.table(("file",), [[name] for name in sorted(files)]))
        return
    if cluster:
        objects = cluster_manifests(universe)
    else:
        objects = secrets_of(universe, path) if secrets else manifests(universe, facts)
    text = to_yaml(objects)
    output.result({"objects": len(objects), "yaml": text}, lambda: click.echo(text, nl=False))


@kube.verb("validate", "Check manifests by the schemas of Kubernetes and the profile.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--no-schemas", is_flag=True, help="Check only the rules of the profile.")
@click.option(
    "--kubernetes",
    "versions",
    multiple=True,
    metavar="VERSION",
    help="Kubernetes version whose schemas to check. Repeatable.",
)
@click.option("--without-secrets", is_flag=True, help="Do not require Secrets: they are created elsewhere.")
@output_options
def validate(
    output: Output, files: Sequence[Path], no_schemas: bool, versions: Sequence[str], without_secrets: bool
) -> None:
    """Check manifests of any origin: the schemas of several Kubernetes versions, and the rules of the profile.

    Exit code 6 if there is a fault; `veen kube render` alone has none but the Secrets that it leaves out.

    \b
    veen kube render | veen kube validate - --without-secrets
    """
    from veen.products.kube.rules import VERSIONS, check_manifests, check_schemas

    objects = [o for file in files for o in documents(file)]
    faults = check_manifests(objects, secrets=find_mounted_secrets(objects) if without_secrets else frozenset())
    if not no_schemas:
        faults = sorted([*faults, *check_schemas(objects, versions or VERSIONS)])
    with output.records("faults", ("code", "object", "fault")) as records:
        for fault in faults:
            records.add(
                {"code": fault.code, "object": fault.place, "fault": fault.what}, [fault.code, fault.place, fault.what]
            )
        records.summary({"objects": len(objects), "count": len(faults)})
    if faults:
        raise Fail(
            "E.KUBE.FAULTS",
            f"{len(faults)} faults in {len(objects)} objects",
            f"{faults[0].place}: {faults[0].what}",
            "mend universe.toml and render again, or the manifest itself; docs/kubernetes.md lists the rules",
        )
    output.note(f"{len(objects)} objects keep every rule")


@kube.verb("apply", "Bring a cluster in line with universe.toml.")
@UNIVERSE
@CONTEXT
@WITHIN
@FORCE
@click.option(
    "--cluster",
    "is_cluster",
    is_flag=True,
    help="Apply, once and as an administrator, the operator's account, its roles and the policies that limit it.",
)
@output_options
def apply(output: Output, path: Path, context: str, within: int, force: bool, is_cluster: bool) -> None:
    """Bring a cluster in line with universe.toml. Existing Secrets stay, self-tests run again.

    A new hub is waited for. When it is ready, its birth certificate is removed from its Secret; here it goes as soon as
    the Secret is made. From then on the hub refuses a blank volume, instead of beginning a second log under its key.

    \b
    veen kube apply --cluster --kube-context admin
    veen kube apply --kube-context prod
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.render import cluster_manifests, manifests, to_yaml

    universe, facts = universe_of(path)
    cluster = Cluster(context)
    if is_cluster:
        objects = cluster_manifests(universe)
        cluster.apply(to_yaml(objects), force=force)
        output.result({"context": context, "objects": len(objects), "secrets_created": 0, "births_settled": []})
        output.next("veen kube apply --kube-context CONTEXT")
        return
    objects = manifests(universe, facts)
    apply_namespaces(cluster, objects, force=force)
    created = _create_secrets(cluster, universe, path)
    settle_births(cluster, universe, path)  # of hubs that an earlier command has left
    newborn = _namespaces_with_birth(cluster, universe, path)
    rest = [o for o in objects if o["kind"] not in ("Namespace", "RoleBinding", "Job")]
    apply_objects(cluster, rest, output, force=force)
    cluster.run_jobs([o for o in objects if o["kind"] == "Job"])
    for workload in objects:
        if is_hub(workload) and workload["metadata"]["namespace"] in newborn:
            cluster.wait_rollout(workload, within)
    settled = settle_births(cluster, universe, path)
    output.result({"context": context, "objects": len(objects), "secrets_created": created, "births_settled": settled})
    output.next(f"veen kube status --kube-context {context}")


def _create_secrets(cluster: "Cluster", universe: "Universe", path: Path) -> int:
    """Create the Secrets that are missing; a birth certificate is given out once, to one cluster."""
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.render import to_yaml
    from veen.products.kube.secrets import BIRTH_FILE, NamespaceKeys

    names = {namespace_of(entry) for entry in (None, *universe.tenants)}
    missing = [
        o
        for o in secrets_of(universe, path)
        if (namespace := o["metadata"]["namespace"]) in names
        and not cluster.has("secret", namespace, o["metadata"]["name"])
    ]
    for secret in missing:
        cluster.create(to_yaml([secret]))
        if BIRTH_FILE in secret["data"]:
            NamespaceKeys(keys_of(path), secret["metadata"]["namespace"]).drop_birth()
    return len(missing)


def _namespaces_with_birth(cluster: "Cluster", universe: "Universe", path: Path) -> set[str]:
    """Return the namespaces whose hub may begin its log now."""
    from veen.products.kube.objects import keys_secret_of, namespace_of
    from veen.products.kube.secrets import BIRTH_FILE, NamespaceKeys

    newborn = set()
    for hub in (None, *universe.tenants):
        namespace = namespace_of(hub)
        name = NamespaceKeys(keys_of(path), namespace).facts().keys_secret or keys_secret_of(hub)
        if BIRTH_FILE in cluster.secret_files(namespace, name):
            newborn.add(namespace)
    return newborn


@kube.verb("diff", "Show the changes that apply would make.")
@UNIVERSE
@CONTEXT
@FORCE
@output_options
def diff(output: Output, path: Path, context: str, force: bool) -> None:
    """Show the changes that apply would make in a cluster. Jobs are not compared: apply runs them again.

    What is in a namespace that is not there yet is new, and is named only.

    \b
    veen kube diff --kube-context prod
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.render import manifests, to_yaml

    universe, facts = universe_of(path)
    cluster = Cluster(context)
    objects = [o for o in manifests(universe, facts) if o["kind"] != "Job"]
    present = set(cluster.namespaces([o["metadata"]["name"] for o in objects if o["kind"] == "Namespace"]))
    lines, compared = [], []
    for o in objects:
        name, namespace = o["metadata"]["name"], o["metadata"].get("namespace", o["metadata"]["name"])
        if namespace not in present:
            lines.append(f"+ {o['kind']} {name if o['kind'] == 'Namespace' else f'{namespace}/{name}'}")
        elif o["kind"] == "StatefulSet" and cluster.is_managed_otherwise(o):
            lines.append(f"- StatefulSet {namespace}/{name} is made anew: podManagementPolicy cannot be changed")
        else:
            compared.append(o)
    text = "".join(f"{line}\n" for line in lines)
    if compared:
        text += cluster.diff(to_yaml(compared), force=force)
    data = {"context": context, "changes": bool(text), "diff": text}
    output.result(data, lambda: output.text(text.expandtabs()))


@kube.verb("status", "Show the hubs of a cluster and their drift from universe.toml.")
@UNIVERSE
@CONTEXT
@output_options
def status(output: Output, path: Path, context: str) -> None:
    """Show the hubs of a cluster: pods ready and wanted, running version, drift from universe.toml, and the reason of a
    pod that is not ready. Exit code 6 if anything differs.

    \b
    veen kube status --kube-context prod
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.render import manifests

    universe, facts = universe_of(path)
    wanted = {(o["metadata"]["namespace"], o["metadata"]["name"]): o for o in manifests(universe, facts) if is_hub(o)}
    cluster = Cluster(context)
    settle_births(cluster, universe, path)
    present = {(hub.namespace, hub.name): hub for hub in cluster.hubs()}
    rows = [
        _status_row(place, present.get(place), wanted.get(place)) for place in sorted(wanted.keys() | present.keys())
    ]
    columns = ("namespace", "state", "ready", "version", "file", "configuration", "differs", "reason")
    with output.records("hubs", columns) as records:
        for row in rows:
            cells = [
                row["namespace"], row["state"], f"{row['ready']}/{row['wanted']}", row["running_version"] or "-",
                row["file_version"] or "-", "as rendered" if row["configuration_as_rendered"] else "differs",
                ", ".join(row["drift"]) or "-", row["reason"] or "-",
            ]  # fmt: skip
            records.add(row, cells)
    if different := [row for row in rows if row["drift"]]:
        first = different[0]
        raise Fail(
            "E.KUBE.DRIFT",
            f"{len(different)} of {len(rows)} hubs differ from {path}",
            f"{first['namespace']}: {', '.join(first['drift'])}" + (f"; {first['reason']}" if first["reason"] else ""),
            f"veen kube diff --kube-context {context}",
        )


def _status_row(place: "tuple[str, str]", hub: "HubStatus | None", manifest: "Manifest | None") -> "dict[str, Any]":
    """Return a hub of the cluster compared with universe.toml."""
    annotations = {} if manifest is None else manifest["metadata"]["annotations"]
    is_same = hub is not None and hub.config_hash == annotations.get("veen.io/config-hash")
    drift = []
    if hub is None:
        drift.append("missing")
    elif manifest is None:
        drift.append("not in universe.toml")
    else:
        version = annotations["veen.io/version"]
        image = manifest["spec"]["template"]["spec"]["containers"][0]["image"]
        drift += ["not ready"] if not hub.is_ready else []
        drift += ["replicas"] if hub.wanted != manifest["spec"]["replicas"] else []
        drift += ["version"] if version != hub.version or hub.running not in (None, version) else []
        drift += ["image"] if image != hub.image else []
        drift += ["configuration"] if not is_same else []
    return {
        "namespace": place[0],
        "state": _state(hub is not None and hub.is_ready, hub is not None, manifest is not None),
        "ready": 0 if hub is None else hub.ready,
        "version": None if hub is None else hub.version,
        "configuration_as_rendered": is_same and manifest is not None,
        "wanted": 0 if hub is None else hub.wanted,
        "running_version": None if hub is None else hub.running,
        "file_version": annotations.get("veen.io/version"),
        "drift": drift,
        "reason": None if hub is None else hub.reason,
    }


def _state(is_ready: bool, is_there: bool, is_wanted: bool) -> str:
    if not is_there:
        return "missing"
    return ("ready" if is_ready else "not ready") if is_wanted else "not in universe.toml"


@kube.verb("delete", "Delete the namespace of a tenant, and all that is in it.")
@click.argument("tenant_id")
@UNIVERSE
@CONTEXT
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_options
def delete(output: Output, tenant_id: str, path: Path, context: str, yes: bool) -> None:
    """Delete the namespace of a tenant: its hub, its log, its Secrets. Keys and universe.toml here stay.

    The birth certificate of a durable hub is removed first: `apply` brings the hub back only with a volume that has its
    log. To begin anew, destroy the tenant and make another one.

    \b
    veen kube delete team1-dev --kube-context stage --yes
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.secrets import NamespaceKeys

    universe, _ = universe_of(path)
    namespace = universe.tenant(tenant_id).namespace
    if not yes:
        if not output.may_ask:
            raise click.UsageError("confirmation is required, and there is no terminal; add --yes")
        click.confirm(f"Delete namespace {namespace} in {context}, its log included?", abort=True, err=True)
    NamespaceKeys(keys_of(path), namespace).drop_birth()
    Cluster(context).delete_namespace(namespace)
    output.result({"namespace": namespace, "context": context, "deleted": True})
