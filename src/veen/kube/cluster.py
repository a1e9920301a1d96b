"""A cluster, through kubectl and always by an explicit context: nothing is ever applied to whatever is current."""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from veen.core.errors import StatedError
from veen.kube.objects import Manifest
from veen.kube.render import to_yaml

_TIMEOUT_SEC: Final = 300
_SPARE_SEC: Final = 30  # kubectl ends by its own timeout first, and says what it waited for
_ASK_SEC: Final = 1.0
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

    def run_jobs(self, jobs: Sequence[Manifest]) -> None:
        """Run Jobs, also such as ran before: their pods cannot be changed, so they are deleted first."""
        for job in jobs:
            self.delete("job", job["metadata"]["namespace"], job["metadata"]["name"])
        if jobs:
            self.apply(to_yaml(jobs))

    def wait_rollout(self, workload: Manifest, seconds: int) -> None:
        """Until the pod of the present template is ready."""
        metadata = workload["metadata"]
        target = f"{workload['kind'].lower()}/{metadata['name']}"
        words = ["rollout", "status", target, "--namespace", metadata["namespace"], f"--timeout={seconds}s"]
        self._run(words, timeout=seconds + _SPARE_SEC)

    def wait_job(self, namespace: str, name: str, seconds: int) -> bool:
        """Until a Job has ended; whether it succeeded."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self._run(["get", "job", name, "--namespace", namespace, "--output=json"])
            try:
                conditions = json.loads(answer).get("status", {}).get("conditions") or ()
                kinds = {condition["type"] for condition in conditions if condition["status"] == "True"}
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                raise ClusterFailed("kubectl did not answer with a Job") from exc
            if kinds & {"Complete", "Failed"}:
                return "Complete" in kinds
            time.sleep(_ASK_SEC)
        raise ClusterFailed(f"Job {namespace}/{name} did not end within {seconds} s")

    def logs(self, namespace: str, job: str) -> str:
        return self._run(["logs", f"job/{job}", "--namespace", namespace])

    def execute(self, workload: Manifest, words: Sequence[str]) -> str:
        """What a program says that runs in the container of a workload."""
        metadata = workload["metadata"]
        target = f"{workload['kind'].lower()}/{metadata['name']}"
        return self._run(["exec", target, "--namespace", metadata["namespace"], "--", *words])

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self._run(["delete", kind, name, "--namespace", namespace, "--ignore-not-found", "--wait=true"])

    def has(self, kind: str, namespace: str, name: str) -> bool:
        return bool(self._run(["get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"]))

    def secret_files(self, namespace: str, name: str) -> frozenset[str]:
        """Return the names of the files in a Secret; none if there is no such Secret."""
        answer = self._run(["get", "secret", name, "--namespace", namespace, "--ignore-not-found", "--output=json"])
        try:
            return frozenset(json.loads(answer)["data"]) if answer.strip() else frozenset()
        except (ValueError, KeyError, TypeError) as exc:
            raise ClusterFailed("kubectl did not answer with a Secret") from exc

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

    def _run(
        self, words: Sequence[str], text: str = "", accepted: Sequence[int] = (0,), timeout: int = _TIMEOUT_SEC
    ) -> str:
        if shutil.which(self._program) is None:
            raise ClusterFailed(f"{self._program} is not installed")
        command = [self._program, "--context", self._context, *words]
        try:
            done = subprocess.run(  # noqa: S603 - kubectl, with words of our own
                command, input=text, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired as exc:
            raise ClusterFailed(f"kubectl {words[0]} did not end within {timeout} s") from exc
        if done.returncode not in accepted:
            raise ClusterFailed(f"kubectl {words[0]} ended with {done.returncode}: {done.stderr.strip()[:_MAX_WORDS]}")
        return done.stdout


def json_in(log: str) -> Any:
    """Return the JSON object that a command printed, from the log of its pod; ValueError if there is none.

    In a log of lines (spec-4 §10.3) each `record` is a part of it, and the line with `of` names their list and has the
    rest. Logs of earlier releases have the object as it is, with notes of the program beside it.
    """
    lines = _log_lines(log)
    if lines:
        records = [line["record"] for line in lines if "record" in line]
        end = next((line for line in lines if "of" in line), None)
        if end is not None:
            return {end["of"]: records, **end["summary"]}
        if len(records) != 1:
            raise ValueError("the log has no one result")
        return records[0]
    start = 0 if log.startswith("{") else log.find("\n{") + 1
    return json.JSONDecoder().raw_decode(log, start)[0]


def _log_lines(log: str) -> list[dict[str, Any]]:
    lines = []
    for text in log.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and {"ts", "level", "component", "role"} <= line.keys():
            lines.append(line)
    return lines


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
