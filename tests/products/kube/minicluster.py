"""A cluster of one node for tests: it keeps manifests, runs pods by `kubelet` beside it, and answers `kubectl`.

Of an API server it has what `veen kube` can trip over: namespaces must exist, fields that the real one calls
immutable cannot change (Secrets that say so, the template of a Job, selectors, claims), and deleting a namespace
deletes what is in it. Deployments and StatefulSets have one pod, which ends before the next one begins. The address
of a Service belongs to a ready pod that it selects, to nobody else. A NetworkPolicy becomes rules of iptables in the
pods that it selects.

It is no Kubernetes: no defaults, no admission, no scheduler, no authentication. docs/kubernetes.md says what is left
to be tried on a real cluster.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.cli import shapecheck
from tests.products.kube.kubelet import Node, Pod, Runtime, enter_network, http_status, interpreter_runtime
from tests.waiting import until

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Key = tuple[str, str, str]  # kind, namespace, name
_CLUSTER_WIDE = (
    "Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
_PASSIVE = (
    "ServiceAccount",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "CronJob",
)
_WORKLOADS = ("Deployment", "StatefulSet")
_KINDS = (*_CLUSTER_WIDE, *_PASSIVE, *_WORKLOADS, "Service", "NetworkPolicy", "Job", "Pod")
_PLURALS = {f"{kind.lower()}{suffix}": kind for kind in _KINDS for suffix in ("", "s")} | {"deploy": "Deployment"}
_KUBECTL = """#!{python} -I
import json, socket, sys
words = sys.argv[1:]
text = sys.stdin.read() if "-" in words else ""
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    with connection.makefile("rwb") as file:
        file.write(json.dumps([words, text]).encode() + b"\\n")
        file.flush()
        code, out, err = json.loads(file.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Refused(Exception):
    """What the API server would not take."""


class Job:
    """A Job under way: pods one after the other until one succeeds or too many failed."""

    def __init__(self, cluster: "MiniCluster", namespace: str, name: str, spec: Mapping[str, Any]) -> None:
        self._cluster, self.namespace, self.job_name, self._spec = cluster, namespace, name, spec
        self.pods: list[Pod] = []
        self.succeeded: bool | None = None  # None: not ended
        self._deleted = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        template = self._spec["template"]
        for number in range(self._spec.get("backoffLimit", 6) + 1):
            name = f"{self.job_name}-{number}"
            pod = Pod(self._cluster, self.namespace, name, template["metadata"], template["spec"])
            self.pods.append(pod)
            self._cluster.start_pod(pod)
            pod.join(self._spec.get("activeDeadlineSeconds"))
            if pod.is_alive() or self._deleted.is_set():
                pod.delete()
                break
            if pod.exit_code == 0:
                self.succeeded = True
                return
        self.succeeded = False

    def delete(self) -> None:
        self._deleted.set()
        for pod in self.pods:
            pod.delete()
        self._thread.join()

    def output(self) -> str:
        return "".join(pod.output() for pod in self.pods[-1:])


class Objects:
    """Manifests as an API server keeps them; what becomes of them is for a subclass."""

    context = "mini"

    def __init__(self) -> None:
        self._objects: dict[Key, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self.jobs: dict[tuple[str, str], Any] = {}

    # --- objects ------------------------------------------------------------------------------------------

    def apply(
        self, objects: Iterable[Mapping[str, Any]], *, is_create: bool = False, is_dry: bool = False
    ) -> list[str]:
        """Create or change objects, in their order; one word on each. A dry run only says whether it could."""
        lines = []
        for manifest in objects:
            key = _key(manifest)
            before = self._objects.get(key)
            if before is not None and is_create:
                raise Refused(f"{key[0]} {key[1]}/{key[2]} already exists")
            if key[0] not in _KINDS:
                raise Refused(f"no matches for kind {key[0]}")
            if key[0] not in _CLUSTER_WIDE and self.find("Namespace", "", key[1]) is None:
                raise Refused(f"namespace {key[1]} not found")
            if before is not None:
                _check_immutable(before, manifest)
            if is_dry:
                continue
            with self._lock:
                self._objects[key] = json.loads(json.dumps(manifest))
            if before != manifest:
                self._reconcile(key)
            what = "created" if before is None else "unchanged" if before == manifest else "configured"
            lines.append(f"{key[0].lower()}/{key[2]} {what}")
        return lines

    def delete(self, kind: str, namespace: str, name: str, *, is_orphaning: bool = False) -> bool:
        """Delete an object; what it owns stays if it is orphaned."""
        with self._lock:
            existed = self._objects.pop((kind, namespace, name), None) is not None
        if existed and not is_orphaning:
            self._reconcile((kind, namespace, name))
        return existed

    def delete_namespace(self, name: str) -> bool:
        """Everything in it goes, claims included."""
        with self._lock:
            keys = [key for key in self._objects if key[1] == name]
            for key in keys:
                self._objects.pop(key)
            existed = self._objects.pop(("Namespace", "", name), None) is not None
        for key in keys:
            self._reconcile(key)
        self._forget_volumes(name)
        return existed

    def _reconcile(self, key: Key) -> None:
        """Bring what runs to what is wanted of an object."""
        raise NotImplementedError

    def _forget_volumes(self, namespace: str) -> None:
        """Delete the volumes of a namespace that is gone."""
        raise NotImplementedError

    def pod_items(self, namespace: str) -> list[dict[str, Any]]:
        """Return the pods of a namespace as the API server answers with them."""
        raise NotImplementedError

    def ready_count(self, namespace: str, name: str) -> int:
        """Return how many pods of a workload are ready."""
        raise NotImplementedError

    def wait_ready(self, namespace: str, name: str) -> Any:
        raise NotImplementedError

    def execute(self, namespace: str, name: str, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a program in the container of a workload."""
        raise NotImplementedError

    def find(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._objects.get((kind, namespace, name))

    def of(self, kind: str, namespace: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            return [o for key, o in self._objects.items() if key[0] == kind and namespace in (None, key[1])]

    def everything(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._objects.values())

    @staticmethod
    def rendered(text: str) -> list[dict[str, Any]]:
        """The objects that `veen kube render` printed."""
        return [document for document in yaml.load_all(text, _Loader) if document]

    @staticmethod
    def namespace_of(manifest: Mapping[str, Any]) -> str:
        """Where an object is; a Namespace is in itself."""
        metadata = manifest["metadata"]
        return str(metadata["name"] if manifest["kind"] == "Namespace" else metadata.get("namespace", ""))


class MiniCluster(Objects, Node):
    """Manifests, and the pods that run because of them."""

    def __init__(self, root: Path, runtime: Runtime | None = None) -> None:
        Objects.__init__(self)
        Node.__init__(self, root, runtime or interpreter_runtime(root / "programs"))
        self._workload_pods: dict[Key, Pod] = {}
        self._pods: dict[tuple[str, str], Pod] = {}
        self._addresses: dict[tuple[str, str], str] = {}  # of Services
        self._owners: dict[tuple[str, str], str] = {}  # Service -> network namespace of its pod
        self._rules: dict[str, object] = {}  # network namespace -> callers that are let in
        self._count = 0
        (root / "hosts").mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        self._write_kubectl()

    def _forget_volumes(self, namespace: str) -> None:
        for directory in ("pvc", "pods"):
            subprocess.run(["rm", "-rf", "--", str(self.root / directory / namespace)], check=True)

    def pod_items(self, namespace: str) -> list[dict[str, Any]]:
        pods = [pod for pod in self._workload_pods.values() if pod.namespace == namespace]
        return [_pod_item(pod.pod_name, namespace, pod.metadata, pod.ready) for pod in pods]

    def ready_count(self, namespace: str, name: str) -> int:
        with contextlib.suppress(Refused):
            return int(self.pod(namespace, name).ready)
        return 0

    def execute(self, namespace: str, name: str, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return self.pod(namespace, name).execute(words)

    # --- controllers --------------------------------------------------------------------------------------

    def _reconcile(self, key: Key) -> None:
        kind, namespace, name = key
        manifest = self._objects.get(key)
        if kind in _WORKLOADS:
            self._run_workload(key, manifest)
        elif kind == "Job":
            if (job := self.jobs.pop((namespace, name), None)) is not None:
                job.delete()
            if manifest is not None:
                self.jobs[namespace, name] = Job(self, namespace, name, manifest["spec"])
        elif kind == "Pod":
            if (pod := self._workload_pods.pop(key, None)) is not None:
                pod.delete()
            if manifest is not None:
                self._workload_pods[key] = self.start_pod(
                    Pod(self, namespace, name, manifest["metadata"], manifest["spec"])
                )
        self.changed()

    def _run_workload(self, key: Key, manifest: Mapping[str, Any] | None) -> None:
        """One pod of the present template; the last one ends before (Recreate, and a StatefulSet of one)."""
        template = manifest["spec"]["template"] if manifest is not None and manifest["spec"]["replicas"] else None
        before = self._workload_pods.get(key)
        if before is not None:
            if template is not None and (before.metadata, before.spec) == (template["metadata"], template["spec"]):
                return
            self._workload_pods.pop(key)
            before.delete()
        if template is not None:
            self._new_pod(key, template)

    def _new_pod(self, key: Key, template: Mapping[str, Any]) -> None:
        self._count += 1
        name = f"{key[2]}-0" if key[0] == "StatefulSet" else f"{key[2]}-{self._count}"
        self._workload_pods[key] = self.start_pod(Pod(self, key[1], name, template["metadata"], template["spec"]))

    def start_pod(self, pod: Pod) -> Pod:
        with self._lock:
            self._pods[pod.namespace, pod.pod_name] = pod
        pod.start()
        return pod

    def pod(self, namespace: str, name: str) -> Pod:
        """The pod of a workload, or a pod by its own name."""
        for kind in (*_WORKLOADS, "Pod"):
            if (pod := self._workload_pods.get((kind, namespace, name))) is not None:
                return pod
        raise Refused(f"{namespace}/{name} has no pod")

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete the pod of a workload: its controller makes another one, with another emptyDir."""
        for kind in _WORKLOADS:
            if (pod := self._workload_pods.get((kind, namespace, name))) is not None:
                pod.delete()
                self._new_pod((kind, namespace, name), self._objects[kind, namespace, name]["spec"]["template"])

    # --- network ------------------------------------------------------------------------------------------

    def network_of(self, pod: Pod) -> tuple[str, str]:
        with self._lock:
            pod.network_name, pod.address = self.network.add_pod()
            self.changed()
            return pod.network_name, pod.address

    def changed(self) -> None:
        with self._lock:
            self._pods = {key: pod for key, pod in self._pods.items() if not pod.ended}
            connected = [pod for pod in self._pods.values() if pod.network_name is not None]
            for service in self.of("Service"):
                self._address(service)
            self._write_hosts()
            for place, address in self._addresses.items():
                target = self.find("Service", *place)
                owner = next((pod for pod in connected if target and pod.ready and _selects(target, pod)), None)
                network_name = None if owner is None else owner.network_name
                if self._owners.get(place) != network_name:
                    self.network.move(address, self._owners.pop(place, None), network_name)
                    if network_name is not None:
                        self._owners[place] = network_name
            for pod in connected:
                callers = self._callers(pod, connected)
                if self._rules.get(str(pod.network_name)) != callers:
                    self._rules[str(pod.network_name)] = callers
                    self.network.filter(str(pod.network_name), callers)

    def _address(self, service: Mapping[str, Any]) -> None:
        place = (service["metadata"]["namespace"], service["metadata"]["name"])
        self._addresses.setdefault(place, f"10.244.200.{1 + len(self._addresses)}")

    def _callers(self, pod: Pod, pods: Sequence[Pod]) -> list[tuple[str, int]] | None:
        """Who may connect to a pod, by address and port; None if no policy selects it."""
        policies = [
            policy["spec"]
            for policy in self.of("NetworkPolicy", pod.namespace)
            if _matches(policy["spec"]["podSelector"], pod.labels)
        ]
        if not policies:
            return None
        return sorted(
            (str(other.address), port["port"])
            for other in pods
            for spec in policies
            for rule in spec.get("ingress", ())
            if any(self._is_peer(peer, pod, other) for peer in rule["from"])
            for port in rule["ports"]
        )

    def _is_peer(self, peer: Mapping[str, Any], pod: Pod, other: Pod) -> bool:
        if not _matches(peer.get("podSelector", {}), other.labels):
            return False
        if "namespaceSelector" not in peer:
            return other.namespace == pod.namespace
        namespace = self.find("Namespace", "", other.namespace)
        return namespace is not None and _matches(peer["namespaceSelector"], namespace["metadata"].get("labels", {}))

    def hosts_file(self, namespace: str) -> Path:
        return self.root / "hosts" / namespace

    def _write_hosts(self) -> None:
        """In place: pods have the file mounted."""
        for namespace in (o["metadata"]["name"] for o in self.of("Namespace")):
            lines = ["127.0.0.1 localhost"]
            for (place, name), address in self._addresses.items():
                names = [f"{name}.{place}.svc.cluster.local", f"{name}.{place}.svc", f"{name}.{place}"]
                lines.append(" ".join([address, *names, *([name] if place == namespace else [])]))
            text, path = "\n".join(lines) + "\n", self.hosts_file(namespace)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                path.chmod(0o644)

    def status(self, namespace: str, name: str, path: str) -> int | None:
        """The answer of a hub to the node, past its Service."""
        statuses: list[int | None] = []

        def ask() -> None:
            enter_network(self.network.node)
            statuses.append(http_status(str(self.pod(namespace, name).address), 8080, path))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return statuses[0] if statuses else None

    def url(self, namespace: str) -> str:
        """The Service of the hub of a namespace, as the node reaches it."""
        name = "veen-authority" if namespace == "veen-system" else "veen-hub"
        return f"http://{self._addresses[namespace, name]}:8080"

    # --- waiting ------------------------------------------------------------------------------------------

    def wait_ready(self, namespace: str, name: str) -> Pod:
        until(lambda: self.pod(namespace, name).ready)
        return self.pod(namespace, name)

    def wait_job(self, namespace: str, name: str) -> Job:
        job: Job = self.jobs[namespace, name]
        until(lambda: job.succeeded is not None, 300)
        return job

    # --- programs beside the cluster ----------------------------------------------------------------------

    def run_on_node(self, *words: str | Path, home: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """A program of this machine in the network of the node, with kubectl of this cluster in its path."""
        environ = os.environ | {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        environ |= {} if home is None else {"VEEN_HOME": str(home)}
        return subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.network.node}", *map(str, words)],
            env=environ, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip

    def veen(self, *words: str | Path, home: Path | None = None, code: int = 0) -> Any:
        """What a command says as JSON."""
        done = self.run_on_node(sys.executable, "-m", "veen", *words, "--json", home=home)
        shapecheck.check([*map(str, words), "--json"], done.returncode, done.stdout, done.stderr)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return json.loads(done.stdout or done.stderr)

    def _write_kubectl(self) -> None:
        path = self.root / "bin" / "kubectl"
        path.parent.mkdir()
        self._listener.bind(str(self.root / "api"))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        path.write_text(_KUBECTL.format(python=sys.executable, socket=str(self.root / "api")))
        path.chmod(0o755)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as file:
            words, text = json.loads(file.readline())
            try:
                answer = Kubectl(self, words, text).run()
            except Refused as exc:
                answer = (1, "", f"Error from server: {exc}\n")
            except Exception as exc:
                answer = (70, "", f"{type(exc).__name__}: {exc}\n")
            file.write(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        self._listener.close()
        for job in list(self.jobs.values()):
            job.delete()
        pods = list(self._workload_pods.values())
        for pod in pods:  # all at once: each may take its time
            pod._deleted.set()
        for pod in pods:
            pod.delete()
        self.network.close()


class Kubectl:
    """The commands of kubectl that `veen kube` uses, and no others."""

    def __init__(self, cluster: Objects, words: Sequence[str], text: str) -> None:
        self._cluster, self._text = cluster, text
        self._inside: list[str] = []  # after --
        if "--" in words:
            cut = list(words).index("--")
            words, self._inside = words[:cut], list(words[cut + 1 :])
        self._options: dict[str, str] = {}
        self._words: list[str] = []
        iterator = iter(words)
        for word in iterator:
            if word in ("--context", "--namespace", "--selector", "-f"):
                self._options[word] = next(iterator)
            elif word.startswith("--"):
                name, _, value = word.partition("=")
                self._options[name] = value
            else:
                self._words.append(word)

    def run(self) -> tuple[int, str, str]:
        if self._options.get("--context") != self._cluster.context:
            raise Refused(f"context {self._options.get('--context')!r} does not exist")
        verb, *words = self._words
        return getattr(self, f"_{verb}")(*words)  # type: ignore[no-any-return]

    @property
    def _namespace(self) -> str:
        return self._options.get("--namespace", "default")

    def _manifests(self) -> list[dict[str, Any]]:
        return [document for document in yaml.load_all(self._text, _Loader) if document]

    def _apply(self) -> tuple[int, str, str]:
        is_dry = self._options.get("--dry-run") == "server"
        return 0, "\n".join(self._cluster.apply(self._manifests(), is_dry=is_dry)), ""

    def _auth(self, *words: str) -> tuple[int, str, str]:
        return 0, "yes\n", ""

    def _create(self) -> tuple[int, str, str]:
        return 0, "\n".join(self._cluster.apply(self._manifests(), is_create=True)), ""

    def _diff(self) -> tuple[int, str, str]:
        changed = [key for o in self._manifests() if self._cluster.find(*(key := _key(o))) != o]
        return bool(changed), "".join(f"+ {' '.join(key)}\n" for key in changed), ""

    def _get(self, kinds: str, name: str | None = None) -> tuple[int, str, str]:
        kind_names = [_PLURALS[word] for word in kinds.split(",")]
        if name is not None:
            return self._get_named(kind_names[0], name)
        wanted = dict(pair.split("=") for pair in self._options["--selector"].split(","))
        items: list[dict[str, Any]] = []
        for kind in kind_names:
            if kind == "Pod":
                items += self._cluster.pod_items(self._namespace)
                continue
            for o in self._cluster.of(kind, None if kind in _CLUSTER_WIDE else self._namespace):
                place = (o["metadata"].get("namespace", ""), o["metadata"]["name"])
                ready = self._cluster.ready_count(*place) if kind in _WORKLOADS else 0
                items.append({**o, "status": {"readyReplicas": ready}})
        items = [o for o in items if wanted.items() <= o["metadata"].get("labels", {}).items()]
        if self._options["--output"] == "name":
            return 0, "".join(f"{o['kind'].lower()}/{o['metadata']['name']}\n" for o in items), ""
        return 0, json.dumps({"items": items}), ""

    def _get_named(self, kind: str, name: str) -> tuple[int, str, str]:
        manifest = self._cluster.find(kind, "" if kind in _CLUSTER_WIDE else self._namespace, name)
        if manifest is None:
            if "--ignore-not-found" in self._options:
                return 0, "", ""
            raise Refused(f"{kind} {name} not found")
        form = self._options["--output"]
        if form == "name":
            return 0, f"{kind.lower()}/{name}\n", ""
        status: dict[str, Any] = {}
        job = self._cluster.jobs.get((self._namespace, name)) if kind == "Job" else None
        if job is not None and job.succeeded is not None:
            status["conditions"] = [{"type": "Complete" if job.succeeded else "Failed", "status": "True"}]
        return 0, json.dumps({**manifest, "status": status}), ""

    def _delete(self, kind: str, *names: str) -> tuple[int, str, str]:
        for name in names:
            if _PLURALS[kind] == "Namespace":
                existed = self._cluster.delete_namespace(name)
            else:
                orphaned = self._options.get("--cascade") == "orphan"
                existed = self._cluster.delete(_PLURALS[kind], self._namespace, name, is_orphaning=orphaned)
            if not existed and "--ignore-not-found" not in self._options:
                raise Refused(f"{kind} {name} not found")
        return 0, "", ""

    def _rollout(self, verb: str, target: str) -> tuple[int, str, str]:
        if verb != "status":
            raise Refused(f"rollout {verb}")
        self._cluster.wait_ready(self._namespace, target.split("/")[1])
        return 0, f"{target} successfully rolled out\n", ""

    def _logs(self, target: str) -> tuple[int, str, str]:
        return 0, self._cluster.jobs[self._namespace, target.split("/")[1]].output(), ""

    def _exec(self, target: str) -> tuple[int, str, str]:
        done = self._cluster.execute(self._namespace, target.split("/")[1], self._inside)
        failed = f"command terminated with exit code {done.returncode}\n" if done.returncode else ""
        return min(done.returncode, 1), done.stdout, done.stderr + failed


# --- what an API server knows ------------------------------------------------------------------------------------


def _key(manifest: Mapping[str, Any]) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], "" if manifest["kind"] in _CLUSTER_WIDE else metadata["namespace"], metadata["name"]


def _check_immutable(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refused if a field changes that Kubernetes does not let change."""
    kind = before["kind"]
    place = f"{kind} {before['metadata'].get('namespace', '')}/{before['metadata']['name']}"
    if kind in ("Secret", "ConfigMap") and before.get("immutable") and before.get("data") != after.get("data"):
        raise Refused(f"{place}: data: field is immutable when `immutable` is set")
    if kind == "Job" and before["spec"]["template"] != after["spec"]["template"]:
        raise Refused(f"{place}: spec.template: field is immutable")
    fixed = ("podManagementPolicy", "serviceName")
    if kind == "StatefulSet" and any(before["spec"].get(name) != after["spec"].get(name) for name in fixed):
        raise Refused(
            f"{place} is invalid: spec: Forbidden: updates to statefulset spec for other fields are forbidden"
        )
    if kind in _WORKLOADS and before["spec"]["selector"] != after["spec"]["selector"]:
        raise Refused(f"{place}: spec.selector: field is immutable")
    if kind == "PersistentVolumeClaim" and before["spec"] != after["spec"]:
        raise Refused(f"{place}: spec is immutable after creation")


def _pod_item(name: str, namespace: str, metadata: Mapping[str, Any], is_ready: bool) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if is_ready else "False"}
    return {
        "kind": "Pod",
        "metadata": {**metadata, "name": name, "namespace": namespace},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def _selects(service: Mapping[str, Any], pod: Pod) -> bool:
    same_namespace = service["metadata"]["namespace"] == pod.namespace
    return bool(same_namespace and service["spec"]["selector"].items() <= pod.labels.items())


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for expression in selector.get("matchExpressions", ()):
        if expression["operator"] != "In":
            raise Refused(f"selector operator {expression['operator']}")
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
