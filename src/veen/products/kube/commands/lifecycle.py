"""`veen kube upgrade`, `rotate-keys`, `tenant destroy`: the lifecycle of hubs (001 spec-4 §11)."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.entries import when
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.output import Fail, Output, output_options
from veen.products.kube.commands.common import (
    CONTEXT,
    DATA_DIR,
    FORCE,
    SHOW_KEYS,
    UNIVERSE,
    WITHIN,
    WORKLOADS,
    apply_namespaces,
    apply_objects,
    bridge_place,
    edit_universe,
    hub_named,
    is_hub,
    keys_of,
    local_failure,
    parse,
    settle_births,
    universe_of,
)

if TYPE_CHECKING:
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.objects import Manifest
    from veen.products.kube.secrets import NamespaceKeys
    from veen.products.kube.universe import Tenant


@click.command("upgrade")
@click.argument("version")
@UNIVERSE
@CONTEXT
@WITHIN
@FORCE
@click.option("--no-selftest", is_flag=True, help="Do not wait for the self-tests.")
@output_options
def upgrade(
    output: Output, version: str, path: Path, context: str, within: int, force: bool, no_selftest: bool
) -> None:
    """Upgrade all hubs to another version: the authority, then the tenants, then the self-tests.

    A dry run against the cluster comes first; then the version is written to universe.toml and applied. Each hub must
    be ready before the next one is changed, and the first that does not become ready ends the command. Run the same
    command again to continue. The previous version restores the earlier programs, also where the new one never became
    ready; it does not restore the format of a data directory that the new version has changed.

    \b
    veen kube upgrade 0.2.0 --kube-context prod
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.render import manifests, to_yaml
    from veen.products.kube.universe import parse_universe

    before, facts = universe_of(path)
    parse(f'universe = "{before.id}"\nversion = {json.dumps(version)}\n', parse_universe)  # refuses what is no tag
    universe = replace(before, version=version)
    cluster, objects = Cluster(context), manifests(universe, facts)
    apply_namespaces(cluster, manifests(before, facts), force=force)
    steady = [o for o in objects if o["kind"] != "Job"]
    asked = [o for o in steady if o["kind"] != "StatefulSet" or not cluster.is_managed_otherwise(o)]
    cluster.apply(to_yaml(asked), force=force, dry_run=True)
    edit_universe(path, lambda table: table.update({"version": version}))
    hubs = 0
    for namespace in (namespace_of(hub) for hub in (None, *universe.tenants)):
        inside = [o for o in steady if o["metadata"].get("namespace") == namespace]
        output.note(f"{namespace}: applying version {version}")
        apply_objects(cluster, inside, output, force=force)
        for workload in (o for o in inside if o["kind"] in WORKLOADS):
            cluster.wait_rollout(workload, within)
            hubs += is_hub(workload)
    settle_births(cluster, universe, path)
    jobs = [o for o in objects if o["kind"] == "Job"]
    cluster.run_jobs(jobs)
    if not no_selftest:
        for job in jobs:
            if not cluster.wait_job(job["metadata"]["namespace"], job["metadata"]["name"], within):
                raise selftest_failure(cluster, job)
    data = {
        "context": context,
        "version_before": before.version,
        "version": version,
        "hubs": hubs,
        "selftests": 0 if no_selftest else len(jobs),
    }
    output.result(data)


def selftest_failure(cluster: "Cluster", job: "Manifest") -> Fail:
    """Return the failure that a self-test reported."""
    from veen.products.kube.cluster import json_in

    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    checks: list[str] = []
    try:
        report = json_in(cluster.logs(namespace, name))
        checks = [str(check["check"]) for check in report["checks"] if check["result"] == "failed"]
    except (ValueError, KeyError, TypeError):
        checks = []
    return Fail(
        "E.KUBE.SELFTEST",
        f"the self-test of {namespace} failed",
        "; ".join(checks)[:500] or "its Job did not say why",
        f"kubectl logs job/{name} --namespace {namespace}",
    )


@click.command("rotate-keys")
@click.argument("hub")
@UNIVERSE
@click.option("--kube-context", "context", help="Context of kubectl. Default: only create the key and its Secret.")
@click.option(
    "--overlap", default="1d", show_default=True, help="Time for which the old key stays valid beside the new one."
)
@WITHIN
@FORCE
@output_options
def rotate_keys(
    output: Output, hub: str, path: Path, context: str | None, overlap: str, within: int, force: bool
) -> None:
    """Give a hub its next key. HUB is the id of a tenant, or `authority`.

    The hub is asked first: during an earlier rotation nothing is created. Then a new key is put beside the old one into
    a new Secret, and mounted; the hub itself records the rotation in its log, signed by the old key. hub_id, labels and
    the pins of clients stay. After an interruption the same command continues. Without --kube-context you do the rest:
    apply, then `veen-cli hub key rotate` in the pod.

    \b
    veen kube rotate-keys acme-prod --kube-context prod
    veen kube rotate-keys authority --kube-context prod --overlap 7d
    """
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.secrets import NamespaceKeys

    universe, _ = universe_of(path)
    tenant = hub_named(universe, hub)
    keys = NamespaceKeys(keys_of(path), namespace_of(tenant))
    if context is not None and not keys.is_rotating:
        keys.check_rotation(tenant)
        _check_hub_rotates(context, path, keys)
    public = keys.begin_rotation(tenant)
    data: dict[str, Any] = {
        "hub": hub,
        "namespace": keys.namespace,
        "hub_pk": f"ed25519:{public.hex()}",
        "secret": keys.facts().keys_secret,
        "valid_from": None,
    }
    if context is not None:
        data["valid_from"] = _rotate_in(output, context, path, keys, tenant, public, overlap, within, force)
        keys.finish_rotation()
    output.result(data, lambda: output.fields((name, "-" if value is None else value) for name, value in data.items()))
    if context is None:
        output.next("veen kube apply --kube-context CONTEXT")


def _check_hub_rotates(context: str, path: Path, keys: "NamespaceKeys") -> None:
    """Refuse while an earlier rotation lasts: the hub would refuse it as well, after its pod was restarted."""
    from veen.products.kube.cluster import Cluster, ClusterFailed
    from veen.products.kube.render import manifests

    universe, facts = universe_of(path)
    (workload,) = (o for o in manifests(universe, facts) if is_hub(o) and o["metadata"]["namespace"] == keys.namespace)
    answer = Cluster(context).execute(workload, SHOW_KEYS)
    try:
        entries = json.loads(answer)["hub_keys"]
        ends = [int(entry["valid_until"]) for entry in entries[:-1] if entry.get("valid_until")]
        ends.append(int(entries[-1]["valid_from"]))
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise ClusterFailed("the hub did not answer with its keys") from exc
    if (until := max(ends)) > time.time():
        raise Fail(
            "E.CONFLICT",
            f"the hub of {keys.namespace} is not rotated yet",
            f"the rotation before this one lasts until {when(until)}; nothing was made",
            "give the same command after that time",
        )


def _rotate_in(
    output: Output,
    context: str,
    path: Path,
    keys: "NamespaceKeys",
    tenant: "Tenant | None",
    public: bytes,
    overlap: str,
    within: int,
    force: bool,
) -> int:
    """Mount both keys and let the hub rotate; return the time from which the new one signs."""
    from veen.products.kube.cluster import Cluster, ClusterFailed
    from veen.products.kube.render import manifests, to_yaml

    universe, facts = universe_of(path)
    cluster = Cluster(context)
    (workload,) = (o for o in manifests(universe, facts) if is_hub(o) and o["metadata"]["namespace"] == keys.namespace)
    secret = next(o for o in keys.secrets(tenant) if o["metadata"]["name"] == facts[keys.namespace].keys_secret)
    if not cluster.has("secret", keys.namespace, secret["metadata"]["name"]):
        cluster.create(to_yaml([secret]))
    apply_objects(cluster, [workload], output, force=force)
    cluster.wait_rollout(workload, within)
    try:
        identity = json.loads(cluster.execute(workload, SHOW_KEYS))
        for entry in identity["hub_keys"]:
            if entry["hub_pk"] == f"ed25519:{public.hex()}":  # this command was cut off after the rotation
                return int(entry["valid_from"])
        words = ["veen-cli", "hub", "key", "rotate", DATA_DIR, "--overlap", overlap, "--json"]
        rotated = json.loads(cluster.execute(workload, words))
        if rotated["hub_pk"] != f"ed25519:{public.hex()}":
            raise ClusterFailed(f"the hub took another key: {rotated['hub_pk']!s:.80}")
        return int(rotated["valid_from"])
    except (ValueError, KeyError, TypeError) as exc:
        raise ClusterFailed("the hub did not answer with its keys") from exc


@click.command("bridge-keys")
@click.argument("name")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@UNIVERSE
@click.option("--cap", "caps", multiple=True, type=OBJECT_FILE, help="Capability token for the target. Repeatable.")
@output_options
def bridge_keys(output: Output, name: str, directory: Path, path: Path, caps: Sequence[Path]) -> None:
    """Give the bridge NAME of the universe its keys: DIRECTORY is what `veen keygen --out DIRECTORY` wrote.

    The identity needs the read keys of all streams of the bridge, and a token for each if the target asks for one.
    They become the Secret veen-bridge-NAME-keys, which `apply` creates; use this identity for nothing else.

    \b
    veen keygen --out bridge-core --insecure-plain-keystore
    veen id keyring add @core-main.key --identity ./bridge-core
    veen kube bridge-keys core bridge-core --cap core.cbor
    """
    from veen.cli.shared.authority import read_token

    universe, _ = universe_of(path)
    place = bridge_place(universe, path, name)
    stores = [*directory.glob("keystore.enc"), *directory.glob("identities/*/keystore.enc")]
    if len(stores) != 1:
        raise local_failure(
            f"{directory} has {len(stores)} keystores, expected one", "give what `veen keygen --out DIRECTORY` wrote"
        )
    files = {"keystore.enc": stores[0].read_bytes()}
    for cap in caps:
        files[f"{read_token(cap).auth_ref().hex()[:16]}.cbor"] = cap.read_bytes()
    place.keep_bridge_keys(name, files)
    data = {
        "bridge": name,
        "namespace": place.namespace,
        "secret": f"veen-bridge-{name}-keys",
        "files": sorted(files),
    }
    output.result(data, lambda: output.fields((key, str(value)) for key, value in data.items()))
    output.next("veen kube apply --kube-context CONTEXT")


@click.command("destroy")
@click.argument("tenant_id")
@UNIVERSE
@click.option("--kube-context", "context", help="Context of kubectl. Default: change no cluster.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_options
def destroy(output: Output, tenant_id: str, path: Path, context: str | None, yes: bool) -> None:
    """Destroy a tenant: its namespace with its log, and its entry in universe.toml; its keys are moved aside.

    The log is lost forever. Receipts and evidence that others hold can still be verified: the pin is printed.

    \b
    veen kube tenant destroy team1-dev --kube-context stage
    """
    from veen.products.kube.cluster import Cluster
    from veen.products.kube.secrets import NamespaceKeys

    universe, facts = universe_of(path)
    tenant = universe.tenant(tenant_id)
    if used := [bridge.name for bridge in universe.bridges if tenant_id in (bridge.source, bridge.target)]:
        raise local_failure(f"bridge {used[0]} begins or ends at {tenant_id}", f"take it out of {path} first")
    if not yes:
        if not output.may_ask:
            raise click.UsageError("confirmation is required, and there is no terminal; add --yes")
        where = f" in {context}" if context is not None else ""
        click.confirm(f"Destroy tenant {tenant_id}{where}, its log included?", abort=True, err=True)
    if context is not None:
        Cluster(context).delete_namespace(tenant.namespace)

    def without(table: Any) -> None:
        entries = table["tenants"]
        del entries[next(number for number, entry in enumerate(entries) if entry["id"] == tenant_id)]
        if not entries:
            del table["tenants"]

    edit_universe(path, without)
    aside = NamespaceKeys(keys_of(path), tenant.namespace).destroy(int(time.time()))
    data = {
        "tenant": tenant_id,
        "namespace": tenant.namespace,
        "pin": facts[tenant.namespace].pin,
        "context": context,
        "keys": None if aside is None else str(aside),
    }
    output.result(data, lambda: output.fields((name, "-" if value is None else value) for name, value in data.items()))
