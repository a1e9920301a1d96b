"""Manifests as YAML: the same universe gives the same bytes."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from veen.products.kube.objects import HubFacts, Manifest, all_objects, cluster_objects, namespace_of
from veen.products.kube.universe import Universe

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
