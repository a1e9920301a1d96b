"""A cluster, through kubectl and always by an explicit context: nothing is ever applied to whatever is current."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from veen.core.errors import StatedError

__all__ = ["Cluster", "ClusterFailed", "HubStatus"]

_TIMEOUT_SEC: Final = 300
_MAX_WORDS: Final = 2000


class ClusterFailed(StatedError):
    """kubectl is missing, or the cluster refused."""

    hint = "Try `kubectl --context CONTEXT get namespaces`; kubectl comes with Debian's package kubernetes-client."


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatus:
    """A hub of the universe as the cluster sees it."""

    namespace: str
    name: str
    ready: int
    wanted: int
    version: str | None
    config_hash: str | None


class Cluster:
    """One context of the user's kubeconfig."""

    def __init__(self, context: str, program: str = "kubectl") -> None:
        self._context, self._program = context, program

    def apply(self, manifests: str) -> str:
        """Create or change objects; server-side, so that others' fields stay."""
        return self._run(["apply", "--server-side", "--field-manager=veen", "-f", "-"], manifests)

    def create(self, manifests: str) -> str:
        """Create objects that must not be there yet: Secrets."""
        return self._run(["create", "-f", "-"], manifests)

    def diff(self, manifests: str) -> str:
        """What `apply` would change; empty if nothing."""
        return self._run(["diff", "--server-side", "--field-manager=veen", "-f", "-"], manifests, accepted=(0, 1))

    def has(self, kind: str, namespace: str, name: str) -> bool:
        return bool(self._run(["get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"]))

    def delete_namespace(self, namespace: str) -> str:
        return self._run(["delete", "namespace", namespace, "--wait=true", "--ignore-not-found"])

    def hubs(self) -> list[HubStatus]:
        """Every hub of any universe in the cluster."""
        selector = "app.kubernetes.io/part-of=veen,app.kubernetes.io/component=hub"
        command = ["get", "deployments,statefulsets", "--all-namespaces", "--selector", selector, "--output=json"]
        try:
            items = json.loads(self._run(command))["items"]
            return sorted(map(_status, items), key=lambda status: (status.namespace, status.name))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ClusterFailed("kubectl did not answer with a list of workloads") from exc

    def _run(self, words: Sequence[str], text: str = "", accepted: Sequence[int] = (0,)) -> str:
        if shutil.which(self._program) is None:
            raise ClusterFailed(f"{self._program} is not installed")
        command = [self._program, "--context", self._context, *words]
        try:
            done = subprocess.run(  # noqa: S603 - kubectl, with words of our own
                command, input=text, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SEC
            )
        except subprocess.TimeoutExpired as exc:
            raise ClusterFailed(f"kubectl {words[0]} did not end within {_TIMEOUT_SEC} s") from exc
        if done.returncode not in accepted:
            raise ClusterFailed(f"kubectl {words[0]} ended with {done.returncode}: {done.stderr.strip()[:_MAX_WORDS]}")
        return done.stdout


def _status(item: dict[str, Any]) -> HubStatus:
    metadata, annotations = item["metadata"], item["metadata"].get("annotations", {})
    return HubStatus(
        namespace=metadata["namespace"],
        name=metadata["name"],
        ready=item.get("status", {}).get("readyReplicas", 0),
        wanted=item["spec"]["replicas"],
        version=annotations.get("veen.io/version"),
        config_hash=annotations.get("veen.io/config-hash"),
    )
