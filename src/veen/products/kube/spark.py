"""Pod templates and settings for Spark on Kubernetes, beside a universe (docs/spark-cluster.md).

Spark creates its pods; a template adds the missing parts: no privileges, the labels by which hubs admit pods, keys as
files. Rendered and checked against the schemas; not yet run on a cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from veen.products.kube.objects import Manifest, container_security, namespace_of, pod_security
from veen.products.kube.universe import Tenant, Universe

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
