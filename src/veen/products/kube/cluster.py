"""A cluster, through kubectl and always with an explicit context: the current context is never used."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from veen.core.errors import StatedError
from veen.products.kube.objects import AUTHORITY_NAMESPACE, Manifest
from veen.products.kube.render import to_yaml

_TIMEOUT_SEC: Final = 300
_SPARE_SEC: Final = 30  # kubectl's own timeout comes first, and its message names the condition
_ASK_SEC: Final = 1.0
_ACCESS_SEC: Final = 10.0
_MAX_WORDS: Final = 2000
_MAX_REASON: Final = 300
_MAX_FIELDS: Final = 3
_PART_OF: Final = "app.kubernetes.io/part-of=veen"
_FORCE: Final[Mapping[bool, list[str]]] = {True: ["--force-conflicts"], False: []}
_CONFLICT: Final = re.compile(r"(?:conflicts? with \"[^\"]*\"[^:\n]*: |^- )(\.\S+)", re.MULTILINE)
_MANAGER: Final = re.compile(r"conflicts? with \"([^\"]*)\"")
_DENIED: Final = re.compile(r"User \"|cannot |denied|not allowed|is attempting to grant")


class ClusterFailed(StatedError):
    """kubectl is missing, or the cluster refused."""

    hint = "Try `kubectl --context CONTEXT get namespaces`; kubectl comes with Debian's package kubernetes-client."


class ClusterForbidden(ClusterFailed):
    """The account of the context lacks a right."""

    hint = (
        "An administrator runs `veen kube apply --cluster --kube-context ADMIN` once; after it ServiceAccount "
        "veen-system/veen-operator may do everything else. `kubectl --context CONTEXT auth whoami` says who you are."
    )


class ClusterConflict(ClusterFailed):
    """Another manager has set fields that universe.toml sets, too."""

    hint = (
        "`veen kube diff --force-conflicts --kube-context CONTEXT` shows what differs; the same command with "
        "--force-conflicts takes it."
    )


class ClusterTimeout(ClusterFailed):
    """A condition was not met in time."""

    hint = "`veen kube status` names the reason of each pod; the same command goes on where it was."


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatus:
    """A hub of the universe as the cluster reports it."""

    namespace: str
    name: str
    ready: int
    wanted: int
    version: str | None  # of the workload
    config_hash: str | None
    running: str | None = None  # the version of its newest pod
    image: str | None = None
    reason: str | None = None  # why its pod is not ready

    @property
    def is_ready(self) -> bool:
        """True if all pods are ready, and there is at least one: a hub scaled to 0 serves nobody."""
        return self.ready == self.wanted and self.ready > 0


class Cluster:
    """One context of the user's kubeconfig."""

    def __init__(self, context: str, program: str = "kubectl") -> None:
        self._context, self._program = context, program

    def apply(self, manifests: str, *, force: bool = False, dry_run: bool = False) -> str:
        """Create or change objects; server-side, so that others' fields stay unless `force` takes them."""
        options = [*_FORCE[force], *(["--dry-run=server"] if dry_run else [])]
        return self._run(["apply", "--server-side", "--field-manager=veen", *options, "-f", "-"], manifests)

    def create(self, manifests: str) -> str:
        """Create objects that must not be there yet: Secrets."""
        return self._run(["create", "-f", "-"], manifests)

    def diff(self, manifests: str, *, force: bool = False) -> str:
        """Return the changes that `apply` would make; empty if none."""
        words = ["diff", "--server-side", "--field-manager=veen", *_FORCE[force], "-f", "-"]
        return self._run(words, manifests, accepted=(0, 1))

    def wait_access(self, namespace: str) -> None:
        """Wait until a new RoleBinding is effective: the API server reads it with a delay."""
        deadline = time.monotonic() + _ACCESS_SEC
        words = ["auth", "can-i", "create", "secrets", "--namespace", namespace]
        while not self._run(words, accepted=(0, 1)).startswith("yes") and time.monotonic() < deadline:
            time.sleep(_ASK_SEC)

    def replace_statefulset(self, workload: Manifest) -> bool:
        """Delete a StatefulSet whose pods are managed otherwise, its pod left running; return True if there was one.

        The field cannot be changed. The next `apply` makes the StatefulSet again, which takes the pod over.
        """
        if not self.is_managed_otherwise(workload):
            return False
        metadata = workload["metadata"]
        words = ["delete", "statefulset", metadata["name"], "--namespace", metadata["namespace"], "--cascade=orphan"]
        self._run(words)
        return True

    def is_managed_otherwise(self, workload: Manifest) -> bool:
        """Return True if the cluster has the StatefulSet with another podManagementPolicy than that of the manifest."""
        metadata, wanted = workload["metadata"], workload["spec"].get("podManagementPolicy")
        words = ["get", "statefulset", metadata["name"], "--namespace", metadata["namespace"]]
        answer = self._run([*words, "--ignore-not-found", "--output=json"])
        with _expect_answer("a StatefulSet"):
            return bool(answer.strip()) and json.loads(answer)["spec"].get("podManagementPolicy") != wanted

    def run_jobs(self, jobs: Sequence[Manifest]) -> None:
        """Run Jobs, also such as ran before: their pods cannot be changed, so they are deleted first."""
        for job in jobs:
            self.delete("job", job["metadata"]["namespace"], job["metadata"]["name"])
        if jobs:
            self.apply(to_yaml(jobs))

    def wait_rollout(self, workload: Manifest, seconds: int) -> None:
        """Wait until the pod of the current template is ready."""
        metadata = workload["metadata"]
        target = f"{workload['kind'].lower()}/{metadata['name']}"
        words = ["rollout", "status", target, "--namespace", metadata["namespace"], f"--timeout={seconds}s"]
        try:
            self._run(words, timeout=seconds + _SPARE_SEC)
        except ClusterForbidden:
            raise
        except ClusterFailed as exc:
            reasons = self._reasons(metadata["namespace"])
            pods = "; ".join(f"pod {name}: {reason}" for name, reason in reasons) or "it has no pod that waits"
            raise ClusterTimeout(
                f"{target} in {metadata['namespace']} did not become ready within {seconds} s; {pods}"
            ) from exc

    def wait_job(self, namespace: str, name: str, seconds: int) -> bool:
        """Wait until a Job has ended; return True if it succeeded."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self._run(["get", "job", name, "--namespace", namespace, "--output=json"])
            with _expect_answer("a Job"):
                conditions = json.loads(answer).get("status", {}).get("conditions") or ()
                kinds = {condition["type"] for condition in conditions if condition["status"] == "True"}
            if kinds & {"Complete", "Failed"}:
                return "Complete" in kinds
            time.sleep(_ASK_SEC)
        pods = "; ".join(f"pod {pod}: {reason}" for pod, reason in self._reasons(namespace, f"job-name={name}"))
        raise ClusterTimeout(f"Job {namespace}/{name} did not end within {seconds} s; {pods or 'no pod waits'}")

    def logs(self, namespace: str, job: str, *, all_containers: bool = False) -> str:
        """Return the log of a Job: of its container, or of those that run before it as well."""
        more = ["--all-containers"] if all_containers else []
        return self._run(["logs", f"job/{job}", "--namespace", namespace, *more])

    def execute(self, workload: Manifest, words: Sequence[str]) -> str:
        """Run a program in the container of a workload; return its output."""
        metadata = workload["metadata"]
        return self.execute_in(metadata["namespace"], metadata["name"], words, kind=workload["kind"].lower())

    def execute_in(self, namespace: str, name: str, words: Sequence[str], kind: str | None = None) -> str:
        """Run a program in the container of a hub; return its output."""
        kind = kind or ("statefulset" if namespace == AUTHORITY_NAMESPACE else "deployment")
        return self._run(["exec", f"{kind}/{name}", "--namespace", namespace, "--", *words])

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self._run(["delete", kind, name, "--namespace", namespace, "--ignore-not-found", "--wait=true"])

    def has(self, kind: str, namespace: str, name: str) -> bool:
        return bool(self._run(["get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"]))

    def secret_files(self, namespace: str, name: str) -> frozenset[str]:
        """Return the names of the files in a Secret; none if it does not exist."""
        answer = self._run(["get", "secret", name, "--namespace", namespace, "--ignore-not-found", "--output=json"])
        with _expect_answer("a Secret"):
            return frozenset(json.loads(answer)["data"]) if answer.strip() else frozenset()

    def delete_namespace(self, namespace: str) -> str:
        return self._run(["delete", "namespace", namespace, "--wait=true", "--ignore-not-found"])

    def namespaces(self, names: Sequence[str] = ()) -> list[str]:
        """Return the names of the namespaces that have the label of VEEN, or are among `names`."""
        labelled = self._run(["get", "namespaces", "--selector", _PART_OF, "--output=name"])
        present = {line.removeprefix("namespace/") for line in labelled.split()}
        return sorted(present | {name for name in names if name not in present and self.has("namespace", "", name)})

    def hubs(self) -> list[HubStatus]:
        """Return every hub of any universe in the namespaces of VEEN; nothing is read outside of them."""
        return [hub for namespace in self.namespaces() for hub in self._hubs_in(namespace)]

    def _hubs_in(self, namespace: str) -> list[HubStatus]:
        selector = f"{_PART_OF},app.kubernetes.io/component=hub"
        words = ["get", "deployments,statefulsets,pods", "--namespace", namespace, "--selector", selector]
        answer = self._run([*words, "--output=json"])
        with _expect_answer("a list of workloads"):
            items = json.loads(answer)["items"]
            pods = [item for item in items if item["kind"] == "Pod"]
            hubs = [_status(item, pods) for item in items if item["kind"] != "Pod"]
        return sorted(hubs, key=lambda status: status.name)

    def _reasons(self, namespace: str, selector: str = _PART_OF) -> list[tuple[str, str]]:
        """Return the pods of a namespace that are not ready, with the reason of each."""
        try:
            answer = self._run(["get", "pods", "--namespace", namespace, "--selector", selector, "--output=json"])
            with _expect_answer("a list of pods"):
                pods = json.loads(answer)["items"]
                return [(pod["metadata"]["name"], reason) for pod in pods if (reason := _reason(pod)) is not None]
        except ClusterFailed:  # the failure being described has precedence
            return []

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
            raise ClusterTimeout(f"kubectl {words[0]} did not end within {timeout} s") from exc
        if done.returncode not in accepted:
            raise _failure(words[0], done.returncode, done.stderr.strip())
        return done.stdout


@contextmanager
def _expect_answer(what: str) -> Iterator[None]:
    """Turn malformed output of kubectl into ClusterFailed, naming the expected answer."""
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise ClusterFailed(f"kubectl did not answer with {what}") from exc


def _failure(verb: str, code: int, words: str) -> ClusterFailed:
    """Return the error for kubectl's message, shortened."""
    if conflicts := _CONFLICT.findall(words):
        managers = sorted(set(_MANAGER.findall(words)))
        fields = sorted(set(conflicts))
        shown = ", ".join(fields[:_MAX_FIELDS]) + (
            f" and {len(fields) - _MAX_FIELDS} more" * (len(fields) > _MAX_FIELDS)
        )
        return ClusterConflict(f"{', '.join(managers) or 'another manager'} has set fields of these objects: {shown}")
    first = next((line for line in words.splitlines() if "Forbidden" in line or "forbidden" in line), None)
    if first is not None and _DENIED.search(first):
        return ClusterForbidden(f"the cluster refused: {first.strip()[:_MAX_WORDS]}")
    return ClusterFailed(f"kubectl {verb} ended with {code}: {words[:_MAX_WORDS]}")


def json_in(log: str) -> Any:
    """Return the JSON object that a command printed, from the log of its pod. Raise ValueError if there is none.

    In a log of lines (spec-4 §10.3) each `record` is a part of it, and the line with `of` names their list and has the
    rest. Logs of earlier releases have the object itself, with notes of the program beside it.
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


def _status(item: dict[str, Any], pods: Sequence[dict[str, Any]]) -> HubStatus:
    metadata, annotations = item["metadata"], item["metadata"].get("annotations", {})
    selector, wanted = item["spec"]["selector"]["matchLabels"], item["spec"].get("replicas", 1)
    own = [pod for pod in pods if selector.items() <= pod["metadata"].get("labels", {}).items()]
    newest = max(own, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    reason = "it is scaled to 0" if wanted == 0 else "it has no pod" if newest is None else _reason(newest)
    return HubStatus(
        namespace=metadata["namespace"],
        name=metadata["name"],
        ready=item.get("status", {}).get("readyReplicas", 0),
        wanted=wanted,
        version=annotations.get("veen.io/version"),
        config_hash=annotations.get("veen.io/config-hash"),
        running=None if newest is None else newest["metadata"].get("annotations", {}).get("veen.io/version"),
        image=item["spec"]["template"]["spec"]["containers"][0].get("image"),
        reason=reason,
    )


def _reason(pod: dict[str, Any]) -> str | None:
    """Return why a pod is not ready; None if it is, or has done its work."""
    status = pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if status.get("phase") == "Succeeded" or conditions.get("Ready", {}).get("status") == "True":
        return None
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = container.get("state", {}), container.get("lastState", {}).get("terminated")
        waiting = state.get("waiting") or state.get("terminated")
        if waiting is None or waiting.get("exitCode") == 0:
            continue
        words = [waiting.get("reason") or "not started", waiting.get("message") or ""]
        words += [f"it ended with {last['exitCode']}" if last else ""]
        return ": ".join(word for word in words if word)[:_MAX_REASON]
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'not scheduled')}: {scheduled.get('message', '')}"[:_MAX_REASON]
    return (
        "it runs, and /readyz does not say that it is ready" if status.get("phase") == "Running" else "it is starting"
    )
