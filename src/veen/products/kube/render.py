"""Manifests as YAML: the same universe gives the same bytes.

Pod templates and settings for Spark on Kubernetes, beside a universe (docs/spark-cluster.md).

Spark creates its pods; a template adds the missing parts: no privileges, the labels by which hubs admit pods, keys as
files. Rendered and checked against the schemas; not yet run on a cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from veen.products.kube.objects import (
    HubFacts,
    Manifest,
    all_objects,
    cluster_objects,
    container_security,
    namespace_of,
    pod_security,
)
from veen.products.kube.universe import Tenant, Universe

# kubectl applies in the order of the file: objects that others need come first.
_ORDER: Final = (
    "Namespace", "ClusterRole", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ServiceAccount",
    "ClusterRoleBinding", "RoleBinding",
    "Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet",
    "Deployment", "CronJob", "Job",
)  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """A dumper without aliases: each object is written in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def manifests(universe: Universe, facts: Mapping[str, HubFacts]) -> list[Manifest]:
    """Return every object of a universe except its Secrets, in the order in which they can be applied."""
    return sorted(all_objects(universe, facts), key=_position)


def cluster_manifests(universe: Universe) -> list[Manifest]:
    """Return the objects that an administrator applies once for all universes of a cluster."""
    return sorted(cluster_objects(universe), key=_position)


def _position(manifest: Manifest) -> tuple[int, str, str]:
    metadata = manifest["metadata"]
    return _ORDER.index(manifest["kind"]), metadata.get("namespace", ""), metadata["name"]


def to_yaml(objects: Iterable[Manifest]) -> str:
    """Write one document for each object, with sorted keys."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=True, explicit_start=True, allow_unicode=True, width=120)


def kustomization(universe: Universe, facts: Mapping[str, HubFacts]) -> dict[str, str]:
    """Return a Kustomize base: a file for each namespace, and kustomization.yaml; nothing for the cluster."""
    files: dict[str, list[Manifest]] = {}
    for manifest in manifests(universe, facts):
        metadata = manifest["metadata"]
        namespace = metadata["name"] if manifest["kind"] == "Namespace" else metadata["namespace"]
        files.setdefault(f"{namespace}.yaml", []).append(manifest)
    order = [f"{namespace_of(tenant)}.yaml" for tenant in (None, *universe.tenants)]
    base = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": order}
    return {name: to_yaml(objects) for name, objects in files.items()} | {"kustomization.yaml": to_yaml([base])}


_CONTAINER: Final = "spark"
_KEYS_DIR: Final = "/etc/veen"
_SCRATCH: Final = "/var/data/spark"


@dataclass(frozen=True, slots=True)
class SparkPods:
    """Templates by file name, and the settings that name them."""

    templates: Mapping[str, Manifest]
    settings: Mapping[str, str]


def spark_pods(
    universe: Universe, tenant: Tenant | None, *, image: str, directory: str, keys_secret: str | None = None
) -> SparkPods:
    """Return templates of driver and executor in the namespace of a hub; `directory`: the place of their files."""
    namespace = namespace_of(tenant)
    settings = {
        "spark.kubernetes.authenticate.driver.serviceAccountName": "veen-spark",
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.namespace": namespace,
    }
    templates: dict[str, Manifest] = {}
    for role in ("driver", "executor"):
        name = f"{role}.yaml"
        templates[name] = _template(universe, tenant, image, keys_secret, is_driver=role == "driver")
        settings[f"spark.kubernetes.{role}.podTemplateContainerName"] = _CONTAINER
        settings[f"spark.kubernetes.{role}.podTemplateFile"] = f"{directory}/{name}"
    return SparkPods(templates, dict(sorted(settings.items())))


def _template(
    universe: Universe, tenant: Tenant | None, image: str, keys_secret: str | None, *, is_driver: bool
) -> Manifest:
    labels = {
        "app.kubernetes.io/part-of": "veen",
        "app.kubernetes.io/component": "cli",
        "veen.io/role": "cli",
        "veen.io/universe-id": universe.id,
    }
    if tenant is not None:
        labels["veen.io/tenant-id"] = tenant.id
    mounts: list[Manifest] = [
        {"mountPath": "/tmp", "name": "tmp"},  # noqa: S108 - a directory of the pod
        {"mountPath": _SCRATCH, "name": "spark-local-dir-1"},  # a name by which Spark takes it for its own scratch
    ]
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}, {"name": "spark-local-dir-1", "emptyDir": {}}]
    if keys_secret is not None:
        mounts.append({"mountPath": _KEYS_DIR, "name": "veen-keys", "readOnly": True})
        volumes.append({"name": "veen-keys", "secret": {"defaultMode": 0o440, "secretName": keys_secret}})
    container = {
        "image": image,
        "name": _CONTAINER,
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": is_driver,  # the driver asks the API server for executors
            "containers": [container],
            "securityContext": pod_security(),
            "volumes": volumes,
        },
    }
