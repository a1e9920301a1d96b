"""`veen kube`: hubs of a universe on Kubernetes, as plain YAML (001 spec-4, docs/kubernetes.md)."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from veen.cli.kube.common import (
    CONTEXT,
    UNIVERSE,
    WITHIN,
    documents,
    is_hub,
    keys_of,
    local_failure,
    mounted_secrets,
    parse,
    read_text,
    secrets_of,
    settle_births,
    universe_of,
)
from veen.cli.lazy import LazyGroup
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.values import SPAN

kube = LazyGroup(
    "kube",
    help="Hubs on Kubernetes: one authority and its tenants, each in a namespace, from one universe.toml.",
    table={
        "bridge-keys": ("veen.cli.kube.lifecycle:bridge_keys", "Give a bridge its keystore and its tokens."),
        "job": ("veen.cli.kube.jobs:job", "Run a command or a self-test once, inside a cluster."),
        "rotate-keys": ("veen.cli.kube.lifecycle:rotate_keys", "Give a hub its next key."),
        "spark-pods": ("veen.cli.kube.spark:spark_pods", "Pod templates and settings for Spark beside a hub."),
        "tenant": ("veen.cli.kube.group:tenant", "Tenants of a universe: new, list, destroy."),
        "upgrade": ("veen.cli.kube.lifecycle:upgrade", "Bring all hubs to another version, the authority first."),
    },
)
tenant = LazyGroup(
    "tenant",
    help="Tenants of a universe.",
    table={"destroy": ("veen.cli.kube.lifecycle:destroy", "Delete a tenant, its log included.")},
)


@kube.verb("init", "Begin a universe: universe.toml and the keys of its authority.")
@UNIVERSE
@click.option("--id", "universe_id", default="default", show_default=True, help="A short name of the universe.")
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
    from veen.kube.secrets import make_keys
    from veen.kube.universe import parse_universe

    text = f'universe = "{universe_id}"\n\n[authority]\nstorage = "10Gi"\n'
    parse(text, parse_universe)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise local_failure(f"{path} is there already", "name another with --file") from None
    facts = make_keys(keys_of(path), None, born_until=int(time.time()) + born_within)
    output.result({"universe": universe_id, "file": str(path), "namespace": "veen-system", "pin": facts.pin})
    output.next("veen kube tenant new ID --storage 10Gi")


@tenant.verb("new", "Add a tenant and make the keys of its hub.")
@click.argument("tenant_id")
@UNIVERSE
@click.option(
    "--storage", help="Size of its volume, such as 20Gi. Without it the hub is disposable: gone with its pod."
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
    from veen.kube.secrets import make_keys
    from veen.kube.universe import parse_universe

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
    """The tenants of a universe."""
    universe, facts = universe_of(path)
    with output.records("tenants", ("tenant", "namespace", "storage", "pin")) as records:
        for entry in universe.tenants:
            pin = facts[entry.namespace].pin
            data = {"tenant": entry.id, "namespace": entry.namespace, "storage": entry.storage, "pin": pin}
            records.add(data, [entry.id, entry.namespace, entry.storage or "disposable", pin])


@kube.verb("render", "Print the manifests of a universe.")
@UNIVERSE
@click.option(
    "--secrets", is_flag=True, help="Print the Secrets instead: private keys, for `kubectl create -f -`, once."
)
@click.option(
    "--kustomize", type=click.Path(file_okay=False, path_type=Path), help="Write a Kustomize base here instead."
)
@output_options
def render(output: Output, path: Path, secrets: bool, kustomize: Path | None) -> None:
    """Print the manifests of a universe: sorted YAML, the same bytes for the same universe.

    Private keys are not part of them.

    \b
    veen kube render > universe.yaml
    veen kube render --secrets | kubectl --context prod create -f -
    veen kube render --kustomize base
    """
    from veen.kube.render import kustomization, manifests, to_yaml

    universe, facts = universe_of(path)
    if kustomize is not None:
        files = kustomization(universe, facts)
        kustomize.mkdir(parents=True, exist_ok=True)
        for name, text in sorted(files.items()):
            (kustomize / name).write_text(text, "utf-8")
        data = {"directory": str(kustomize), "files": sorted(files)}
        output.result(data, lambda: output.table(("file",), [[name] for name in sorted(files)]))
        return
    objects = secrets_of(universe, path) if secrets else manifests(universe, facts)
    text = to_yaml(objects)
    output.result({"objects": len(objects), "yaml": text}, lambda: click.echo(text, nl=False))


@kube.verb("validate", "Check manifests by the schemas of Kubernetes and the profile.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--no-schemas", is_flag=True, help="Only the rules of the profile.")
@click.option("--kubernetes", "versions", multiple=True, metavar="VERSION", help="Versions whose schemas count.")
@click.option("--without-secrets", is_flag=True, help="Secrets are made elsewhere: do not demand them.")
@output_options
def validate(
    output: Output, files: Sequence[Path], no_schemas: bool, versions: Sequence[str], without_secrets: bool
) -> None:
    """Check manifests, whoever wrote them: the schemas of several Kubernetes versions, and the rules of the profile.

    Exit code 6 if there is a fault; `veen kube render` alone has none but the Secrets that it leaves out.

    \b
    veen kube render | veen kube validate - --without-secrets
    """
    from veen.kube.rules import check_manifests
    from veen.kube.schemas import VERSIONS, check_schemas

    objects = [o for file in files for o in documents(file)]
    faults = check_manifests(objects, secrets=mounted_secrets(objects) if without_secrets else frozenset())
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


@kube.verb("apply", "Bring a cluster to what universe.toml says.")
@UNIVERSE
@CONTEXT
@WITHIN
@output_options
def apply(output: Output, path: Path, context: str, within: int) -> None:
    """Bring a cluster to what universe.toml says. Secrets that are there stay, self-tests run again.

    A new hub is waited for. When it is ready, its birth certificate is removed here and from its Secret: from then on
    it refuses a blank volume, instead of beginning a second log under the same key.

    \b
    veen kube apply --kube-context prod
    """
    from veen.kube.cluster import Cluster
    from veen.kube.objects import namespace_of
    from veen.kube.render import manifests, to_yaml
    from veen.kube.secrets import NamespaceKeys

    universe, facts = universe_of(path)
    cluster = Cluster(context)
    objects = manifests(universe, facts)
    namespaces = [o for o in objects if o["kind"] == "Namespace"]
    cluster.apply(to_yaml(namespaces))
    names = {namespace_of(entry) for entry in (None, *universe.tenants)}
    missing = [
        o
        for o in secrets_of(universe, path)
        if o["metadata"]["namespace"] in names
        and not cluster.has("secret", o["metadata"]["namespace"], o["metadata"]["name"])
    ]
    if missing:
        cluster.create(to_yaml(missing))
    cluster.apply(to_yaml(o for o in objects if o["kind"] != "Job"))
    cluster.run_jobs([o for o in objects if o["kind"] == "Job"])
    newborn = {name for name in names if NamespaceKeys(keys_of(path), name).has_birth}
    for workload in objects:
        if is_hub(workload) and workload["metadata"]["namespace"] in newborn:
            cluster.wait_rollout(workload, within)
    settled = settle_births(cluster, universe, path)
    output.result(
        {"context": context, "objects": len(objects), "secrets_created": len(missing), "births_settled": settled}
    )
    output.next(f"veen kube status --kube-context {context}")


@kube.verb("diff", "What apply would change in a cluster.")
@UNIVERSE
@CONTEXT
@output_options
def diff(output: Output, path: Path, context: str) -> None:
    """What apply would change in a cluster. Jobs are not compared: apply runs them again.

    \b
    veen kube diff --kube-context prod
    """
    from veen.kube.cluster import Cluster
    from veen.kube.render import manifests, to_yaml

    universe, facts = universe_of(path)
    text = Cluster(context).diff(to_yaml(o for o in manifests(universe, facts) if o["kind"] != "Job"))
    output.result({"context": context, "changes": bool(text), "diff": text}, lambda: output.text(text))


@kube.verb("status", "The hubs of a cluster, and whether they are what was rendered.")
@UNIVERSE
@CONTEXT
@output_options
def status(output: Output, path: Path, context: str) -> None:
    """The hubs of a cluster: ready or not, and whether version and configuration are those of universe.toml.

    \b
    veen kube status --kube-context prod
    """
    from veen.kube.cluster import Cluster
    from veen.kube.render import manifests

    universe, facts = universe_of(path)
    wanted = {
        (o["metadata"]["namespace"], o["metadata"]["name"]): o["metadata"]["annotations"]
        for o in manifests(universe, facts)
        if is_hub(o)
    }
    cluster = Cluster(context)
    settle_births(cluster, universe, path)
    present = {(hub.namespace, hub.name): hub for hub in cluster.hubs()}
    with output.records("hubs", ("namespace", "state", "ready", "version", "configuration")) as records:
        for place in sorted(wanted.keys() | present.keys()):
            hub, annotations = present.get(place), wanted.get(place)
            state = _state(hub is not None and hub.ready == hub.wanted, hub is not None, annotations is not None)
            same = hub is not None and annotations is not None and hub.config_hash == annotations["veen.io/config-hash"]
            data = {
                "namespace": place[0],
                "state": state,
                "ready": 0 if hub is None else hub.ready,
                "version": None if hub is None else hub.version,
                "configuration_as_rendered": same,
            }
            records.add(
                data, [place[0], state, data["ready"], data["version"] or "-", "as rendered" if same else "differs"]
            )


def _state(is_ready: bool, is_there: bool, is_wanted: bool) -> str:
    if not is_there:
        return "missing"
    return ("ready" if is_ready else "not ready") if is_wanted else "not in universe.toml"


@kube.verb("delete", "Delete the namespace of a tenant, and all that is in it.")
@click.argument("tenant_id")
@UNIVERSE
@CONTEXT
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_options
def delete(output: Output, tenant_id: str, path: Path, context: str, yes: bool) -> None:
    """Delete the namespace of a tenant: its hub, its log, its Secrets. Keys and universe.toml here stay.

    The birth certificate of a durable hub is removed first: `apply` brings the hub back only with a volume that has its
    log. To begin anew, destroy the tenant and make another one.

    \b
    veen kube delete team1-dev --kube-context stage --yes
    """
    from veen.kube.cluster import Cluster
    from veen.kube.secrets import NamespaceKeys

    universe, _ = universe_of(path)
    namespace = universe.tenant(tenant_id).namespace
    if not yes:
        if not output.may_ask:
            raise click.UsageError("nobody can be asked here; add --yes")
        click.confirm(f"Delete namespace {namespace} in {context}, its log included?", abort=True, err=True)
    NamespaceKeys(keys_of(path), namespace).drop_birth()
    Cluster(context).delete_namespace(namespace)
    output.result({"namespace": namespace, "context": context, "deleted": True})
