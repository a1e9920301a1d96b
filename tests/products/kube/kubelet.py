"""A small kubelet: it runs pods as manifests describe them, on this machine, without a container engine.

A pod is a network namespace on the bridge of a node, which is a network namespace too: nothing of it reaches the
network of the machine. A container is a process in a sandbox of bubblewrap: the root is read-only, the user is the
one of the manifest, the command is process 1, and the volumes lie where they are mounted. ConfigMaps and Secrets are
laid out as the real kubelet does it, with a link `..data`. Probes ask over HTTP; a container that ends or fails its
liveness probe is started again in the same pod, with the same address and the same emptyDir.

What differs from a node of a cluster: periods of probes and pauses between restarts are shorter by `PACE`, so that
tests need not wait, and probes wait `PATIENCE` times as long for an answer, as the machine may be busy. CPU and
memory are not limited.
"""

import base64
import contextlib
import ctypes
import http.client
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

PACE = 0.1
PATIENCE = 10
NODE_ADDRESS = "10.244.0.1"
_CLONE_NEWNET = 0x40000000
_NETNS = Path("/run/netns")
_SOURCE = str(Path(__file__).parents[3] / "src")
_RESTART_SEC = (1.0, 10.0)  # the first pause, and the longest; before PACE
# Takes the user and groups of a container and becomes its command. Death of the parent must be asked for again: the
# kernel forgets it when the user changes.
_ENTER = """
import ctypes, os, sys
uid, gid, *groups = map(int, sys.argv[1].split(","))
os.setgroups(groups)
os.setgid(gid)
os.setuid(uid)
os.chdir("/")
if sys.argv[2] == "init":
    ctypes.CDLL(None).prctl(1, 9)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"{sys.argv[3]}: {error.strerror}")
"""


class NotPossible(Exception):
    """Why pods cannot run on this machine."""


def run(*words: str | Path, text: str | None = None) -> str:
    done = subprocess.run(list(map(str, words)), input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


# --- the root of containers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runtime:
    """Where the programs of containers come from."""

    root: tuple[str, ...]  # options of bwrap that make the root file system
    python: str
    environment: Mapping[str, str]


def interpreter_runtime(directory: Path) -> Runtime:
    """The interpreter that runs the tests, its packages and the source of veen; nothing else of the machine.

    They lie in /opt, as a pod may mount something at their paths here. The programs go to `directory`.
    """
    in_usr = sys.base_prefix.startswith("/usr")
    python = os.path.realpath(sys.executable) if in_usr else f"/opt/python/bin/{Path(sys._base_executable).name}"  # type: ignore[attr-defined]
    directory.mkdir()
    for program in entry_points(group="console_scripts"):
        if program.name.startswith("veen"):
            lines = (
                f"#!{python} -s",
                "import sys",
                f"from {program.module} import {program.attr} as main",
                "sys.exit(main())",
            )
            (directory / program.name).write_text("\n".join(lines) + "\n")
            (directory / program.name).chmod(0o755)
    binds = {"/opt/bin": str(directory), "/opt/packages": sysconfig.get_path("purelib"), "/opt/src": _SOURCE}
    options = [*_parents(Path("/etc/hosts")), *_parents(Path("/opt/bin"))]
    for name in ("usr", "lib", "lib64", "bin", "sbin"):
        path = Path("/") / name
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    if not in_usr:
        binds["/opt/python"] = sys.base_prefix
    for place, source in binds.items():
        options += ["--ro-bind", source, place]
    for name in ("ld.so.cache", "ld.so.conf", "ssl", "localtime"):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    environment = {
        "HOME": "/var/lib/veen",
        "LD_LIBRARY_PATH": "/opt/python/lib",
        "PATH": "/opt/bin:/usr/bin",
        "PYTHONPATH": "/opt/src:/opt/packages",
    }
    return Runtime(tuple(options), python, environment)


def _parents(path: Path) -> list[str]:
    """Options that make the directories above a mount; by itself bwrap makes them for root alone."""
    return [word for parent in reversed(path.parents[:-1]) for word in ("--perms", "0755", "--dir", str(parent))]


def image_runtime(rootfs: Path) -> Runtime:
    """An unpacked image of tools/build_image.py."""
    (python,) = (f"/usr/bin/{path.name}" for path in (rootfs / "usr/bin").glob("python3.*") if path.name[-1].isdigit())
    options = _parents(Path("/etc/hosts"))
    options += [
        word
        for path in sorted(rootfs.iterdir())
        for word in (
            ("--symlink", str(path.readlink()), f"/{path.name}")
            if path.is_symlink()
            else ("--ro-bind", str(path), f"/{path.name}")
        )
        if path.name not in ("etc", "proc", "dev", "tmp", "var", "run")
    ]
    for path in sorted((rootfs / "etc").iterdir()):  # an own /etc: volumes are mounted in it
        options += ["--ro-bind", str(path), f"/etc/{path.name}"]
    return Runtime(tuple(options), python, {"PATH": "/usr/bin", "HOME": "/var/lib/veen"})


# --- network -----------------------------------------------------------------------------------------------------


class Network:
    """The network of one node: a namespace with a bridge, and a namespace for each pod."""

    def __init__(self, tag: str) -> None:
        self._tag, self._count = tag, 0
        self._names: list[str] = []
        self.node = self._add("node")
        lines = ["link set lo up", "link add br0 type bridge", f"addr add {NODE_ADDRESS}/16 dev br0", "link set br0 up"]
        self._batch(self.node, lines)

    def _add(self, name: str) -> str:
        full = f"veen-{self._tag}-{name}"
        run("ip", "netns", "add", full)
        self._names.append(full)
        return full

    @staticmethod
    def _batch(namespace: str, lines: Sequence[str]) -> None:
        run("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")

    def add_pod(self) -> tuple[str, str]:
        """The namespace of a new pod, and its address."""
        self._count += 1
        number = self._count
        name, address = self._add(f"pod{number}"), f"10.244.{1 + number // 250}.{1 + number % 250}"
        run(
            "ip", "link", "add", f"v{number}", "netns", self.node, "type", "veth", "peer", "name", "eth0", "netns", name
        )
        self._batch(self.node, [f"link set v{number} master br0 up"])
        self._batch(name, ["link set lo up", f"addr add {address}/16 dev eth0", "link set eth0 up"])
        return name, address

    def remove(self, name: str) -> None:
        self._names.remove(name)
        run("ip", "netns", "del", name)

    def move(self, address: str, old: str | None, new: str | None) -> None:
        """Take the address of a Service from one pod and give it to another; everybody looks for it anew."""
        if old in self._names:
            run("ip", "-n", str(old), "addr", "del", f"{address}/32", "dev", "eth0")
        if new is not None:
            run("ip", "-n", new, "addr", "add", f"{address}/32", "dev", "eth0")
        for name in list(self._names):
            run("ip", "-n", name, "neigh", "flush", "all")

    def filter(self, name: str, callers: Sequence[tuple[str, int]] | None) -> None:
        """Let only these callers (address, port) in; None: everybody. The node itself always may, as in a cluster."""
        lines = ["*filter", ":INPUT ACCEPT [0:0]"]
        if callers is not None:
            lines += ["-A INPUT -i lo -j ACCEPT", f"-A INPUT -s {NODE_ADDRESS} -j ACCEPT"]
            lines += [f"-A INPUT -s {address} -p tcp --dport {port} -j ACCEPT" for address, port in callers]
            lines += ["-A INPUT -p tcp --syn -j REJECT --reject-with tcp-reset", "-A INPUT -p udp -j DROP"]
        run("nsenter", f"--net={_NETNS / name}", "iptables-restore", text="\n".join([*lines, "COMMIT"]) + "\n")

    def close(self) -> None:
        for name in list(self._names):
            with contextlib.suppress(NotPossible):
                self.remove(name)


def enter_network(name: str) -> None:
    """Move this thread, and no other one, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (_NETNS / name).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")


# --- volumes -----------------------------------------------------------------------------------------------------


class Volumes:
    """The volumes of a pod as directories: claims outlive it, the rest goes with it."""

    def __init__(self, root: Path, claims: Path) -> None:
        self._root, self._claims = root, claims

    def make(
        self, pod: Mapping[str, Any], find: Callable[[str, str], Mapping[str, Any] | None]
    ) -> dict[str, Path] | None:
        """By name; None if something that is mounted is not there yet. `find` looks up kind and name."""
        group = pod.get("securityContext", {}).get("fsGroup", 0)
        paths: dict[str, Path] = {}
        for volume in pod.get("volumes", ()):
            path = self._root / volume["name"]
            if "configMap" in volume or "secret" in volume:
                kind, key = ("ConfigMap", "name") if "configMap" in volume else ("Secret", "secretName")
                source = volume["configMap"] if "configMap" in volume else volume["secret"]
                manifest = find(kind, source[key])
                if manifest is None and not source.get("optional"):
                    return None
                files = {} if manifest is None else _data(manifest)
                if "items" in source:
                    files = {item["path"]: files[item["key"]] for item in source["items"]}
                _project(path, files, source.get("defaultMode", 0o644), group)
            elif "persistentVolumeClaim" in volume:
                name = volume["persistentVolumeClaim"]["claimName"]
                if find("PersistentVolumeClaim", name) is None:
                    return None
                path = self._claims / name
                _directory(path, group)
            elif "emptyDir" in volume:
                _directory(path, group)
            else:
                raise NotPossible(f"volume {volume['name']}: a kind that this kubelet does not know")
            paths[volume["name"]] = path
        return paths

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _data(manifest: Mapping[str, Any]) -> dict[str, bytes]:
    if manifest["kind"] == "Secret":
        return {name: base64.b64decode(text) for name, text in manifest.get("data", {}).items()}
    return {name: text.encode() for name, text in manifest.get("data", {}).items()}


def _directory(path: Path, group: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, 0, group)
    path.chmod(0o2770)


def _project(path: Path, files: Mapping[str, bytes], mode: int, group: int) -> None:
    """Files of a ConfigMap or Secret: links to ..data, a link to a directory that is replaced as a whole."""
    content = path / "..1"
    content.mkdir(parents=True, exist_ok=True)
    for directory in (path, content):
        directory.chmod(0o755)  # whatever the umask
    for name, data in files.items():
        for parent in reversed(Path(name).parents[:-1]):
            (content / parent).mkdir(exist_ok=True)
            (content / parent).chmod(0o755)
        (content / name).write_bytes(data)
        os.chown(content / name, 0, group)
        (content / name).chmod(mode)
        first = Path(name).parts[0]
        with contextlib.suppress(FileExistsError):
            (path / first).symlink_to(f"..data/{first}")
    with contextlib.suppress(FileExistsError):
        (path / "..data").symlink_to("..1")


# --- pods --------------------------------------------------------------------------------------------------------


class Pod(threading.Thread):
    """One pod with one container, from its first start until it is deleted or, if it must not restart, ends."""

    def __init__(self, node: "Node", namespace: str, name: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]):
        super().__init__(name=f"{namespace}/{name}", daemon=True)
        self.namespace, self.pod_name, self.metadata, self.spec = namespace, name, metadata, spec
        (self.container,) = spec["containers"]
        self.labels: Mapping[str, str] = metadata.get("labels", {})
        self.log_path = node.root / "logs" / f"{namespace}.{name}.log"
        for path in (self.log_path, self.log_path.with_suffix(".init.log")):
            path.unlink(missing_ok=True)  # of an earlier pod of the same name
        self._node, self._volumes = node, Volumes(node.root / "pods" / namespace / name, node.root / "pvc" / namespace)
        self._deleted = threading.Event()
        # Written by the thread of the pod alone, read by others.
        self.network_name: str | None = None
        self.address: str | None = None
        self.ready = self.ended = False
        self.restarts = 0
        self._is_prepared = False  # the init containers have succeeded
        self.exit_code: int | None = None  # of the last container that ended
        self.was_killed = False  # the last container did not end within its grace period
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts: dict[str, Path] = {}

    # --- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            enter_network(self._node.network.node)
            while (volumes := self._volumes.make(self.spec, self._find)) is None:
                if self._deleted.wait(0.05):
                    return
            self._mounts = volumes
            self.network_name, self.address = self._node.network_of(self)
            pause = _RESTART_SEC[0]
            while not self._deleted.is_set():
                if self._is_prepared or self._run_init_containers():
                    self._run_container()
                if self._deleted.is_set() or self._is_done():
                    return
                self._deleted.wait(pause * PACE)
                pause = min(2 * pause, _RESTART_SEC[1])
                self.restarts += 1
        finally:
            self._set_ready(False)
            self.ended = True
            if self.network_name is not None:
                self._node.network.remove(self.network_name)
            self._volumes.remove()
            self._node.changed()

    def _is_done(self) -> bool:
        policy = self.spec.get("restartPolicy", "Always")
        return policy == "Never" or (policy == "OnFailure" and self.exit_code == 0)

    def _find(self, kind: str, name: str) -> Mapping[str, Any] | None:
        return self._node.find(kind, self.namespace, name)

    def delete(self) -> None:
        """End the container, by force after its grace period, and forget the pod."""
        self._deleted.set()
        self.join()

    def _run_init_containers(self) -> bool:
        """One after the other, before the container; whether all succeeded."""
        for container in self.spec.get("initContainers", ()):
            process = self._start(container, self.log_path.with_suffix(".init.log"))
            try:
                while process.poll() is None and not self._deleted.wait(0.02):
                    pass
            finally:
                self.exit_code = self._end()
            if self.exit_code or self._deleted.is_set():
                return False
        self._is_prepared = True
        return True

    def _start(self, container: Mapping[str, Any], log_path: Path) -> "subprocess.Popen[bytes]":
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(container), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self._process

    def _run_container(self) -> None:
        process = self._start(self.container, self.log_path)
        probes: dict[str, _Always] = {
            kind: _Probe(self.container[kind], self.container) for kind in _PROBES if kind in self.container
        }
        probes.setdefault("readinessProbe", _Always())
        startup = probes.pop("startupProbe", None)
        try:
            while process.poll() is None and not self._deleted.wait(0.05):
                if startup is not None:
                    if startup.passes(self.address):
                        startup = None
                    elif startup.has_failed:
                        break
                    continue
                self._set_ready(probes["readinessProbe"].passes(self.address))
                if (liveness := probes.get("livenessProbe")) is not None:
                    liveness.passes(self.address)
                    if liveness.has_failed:
                        break
        finally:
            self._set_ready(False)
            self.exit_code = self._end()

    def _end(self) -> int:
        """Ask the container to end, then kill it; the exit code."""
        assert self._process is not None
        self.was_killed = False
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(self.spec.get("terminationGracePeriodSeconds", 30))
            except subprocess.TimeoutExpired:
                self.was_killed = True
                self.signal(signal.SIGKILL)
        return self._process.wait()

    def _set_ready(self, is_ready: bool) -> None:
        if is_ready != self.ready:
            self.ready = is_ready
            self._node.changed()

    def signal(self, number: int) -> None:
        """A signal to process 1 of the container."""
        with contextlib.suppress(ProcessLookupError):
            if (pid := self._pid()) is not None:
                os.kill(pid, number)

    def handles(self, number: int) -> bool:
        """Whether process 1 of the container runs and has a handler for a signal."""
        if self._process is None or (pid := self._pid()) is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)
        return False

    def _pid(self) -> int | None:
        """Process 1 of the container, as this machine numbers it; None if it has ended."""
        assert self._process is not None
        while self._process.poll() is None:
            pid = self._process.pid
            with contextlib.suppress(FileNotFoundError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                if children:
                    return int(children[0])
            time.sleep(0.01)
        return None

    # --- the container ------------------------------------------------------------------------------------

    def _command(self, container: Mapping[str, Any]) -> list[str]:
        runtime, node = self._node.runtime, self._node
        binds: list[str] = []
        for mount in sorted(container.get("volumeMounts", ()), key=lambda mount: len(mount["mountPath"])):
            option = "--ro-bind" if mount.get("readOnly") else "--bind"
            source = self._mounts[mount["name"]]
            binds += _parents(Path(mount["mountPath"]))
            binds += [option, str(self._nested(source, mount["mountPath"])), mount["mountPath"]]
        environment = {**runtime.environment, "HOSTNAME": self.pod_name}
        environment |= {entry["name"]: entry["value"] for entry in container.get("env", ())}
        read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem")
        return [
            "nsenter", f"--net={_NETNS / str(self.network_name)}",
            "bwrap", *runtime.root, "--proc", "/proc", "--dev", "/dev",
            "--ro-bind", str(node.hosts_file(self.namespace)), "/etc/hosts",
            "--ro-bind", str(node.nsswitch_file), "/etc/nsswitch.conf",
            *binds, *(["--remount-ro", "/"] if read_only else []),
            "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", self.pod_name, "--chdir", "/",
            "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv",
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
            *self._entry("init", [*container.get("command", ()), *container.get("args", ())]),
        ]  # fmt: skip

    def _nested(self, source: Path, mount_path: str) -> Path:
        """The source of a mount, with directories for what is mounted inside it, as the real kubelet makes them."""
        for other in self.container["volumeMounts"]:
            if other["mountPath"].startswith(f"{mount_path}/"):
                (source / other["mountPath"].removeprefix(f"{mount_path}/")).mkdir(mode=0o755, exist_ok=True)
        return source

    def _entry(self, role: str, words: Sequence[str]) -> list[str]:
        context = {**self.spec.get("securityContext", {}), **self.container.get("securityContext", {})}
        user, group = context.get("runAsUser", 0), context.get("runAsGroup", 0)
        if context.get("runAsNonRoot") and not user:
            raise NotPossible(f"{self.name}: runAsNonRoot, and the user is root")
        ids = f"{user},{group},{context.get('fsGroup', group)}"
        return [self._node.runtime.python, "-I", "-c", _ENTER, ids, role, *words]

    def execute(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a program inside the container, as `kubectl exec` does."""
        pid = self._pid()
        if pid is None:
            raise NotPossible(f"{self.name}: the container does not run")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        inside = dict(entry.decode().split("=", 1) for entry in environment if entry)
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts"]
        return subprocess.run(
            ["nsenter", "--target", str(pid), *spaces, *self._entry("exec", words)],
            env=inside, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def output(self) -> str:
        paths = (self.log_path.with_suffix(".init.log"), self.log_path)
        texts = [path.read_text("utf-8", "replace") if path.exists() else "" for path in paths]
        return texts[1] or texts[0]


_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


class _Always:
    """The readiness of a container without a probe."""

    has_failed = False

    def passes(self, address: str | None) -> bool:
        return True


class _Probe(_Always):
    """An HTTP probe, asked again after each period."""

    def __init__(self, spec: Mapping[str, Any], container: Mapping[str, Any]) -> None:
        names = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
        self._path, port = spec["httpGet"]["path"], spec["httpGet"]["port"]
        self._port = names.get(port, port)
        self._period = spec.get("periodSeconds", 10) * PACE
        self._timeout = spec.get("timeoutSeconds", 1) * PATIENCE
        self._most_failures = spec.get("failureThreshold", 3)
        self._failures, self._last_passed, self._due = 0, False, time.monotonic() + spec.get("initialDelaySeconds", 0)

    @property
    def has_failed(self) -> bool:  # type: ignore[override]  # a probe counts, its absence does not
        return bool(self._failures >= self._most_failures)

    def passes(self, address: str | None) -> bool:
        if time.monotonic() >= self._due:
            answered = self._ask(address)
            self._failures = 0 if answered else self._failures + 1
            self._last_passed = answered or (self._last_passed and not self.has_failed)
            self._due = time.monotonic() + self._period
        return self._last_passed

    def _ask(self, address: str | None) -> bool:
        status = http_status(str(address), self._port, self._path, self._timeout)
        return status is not None and 200 <= status < 400


def http_status(address: str, port: int, path: str, timeout: float = PATIENCE) -> int | None:
    """The status of a GET by the network of this thread; None without an answer."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Node:
    """What pods need of the machine they run on; a cluster is its subclass."""

    def __init__(self, root: Path, runtime: Runtime) -> None:
        self.root, self.runtime = root, runtime
        self.network = Network(f"{os.getpid()}-{threading.get_native_id()}")
        self.nsswitch_file = root / "nsswitch.conf"
        self.nsswitch_file.write_text("hosts: files\n")
        self.nsswitch_file.chmod(0o644)

    def find(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def network_of(self, pod: Pod) -> tuple[str, str]:
        """Connect a pod, with the rules that hold for it."""
        raise NotImplementedError

    def changed(self) -> None:
        """A pod became ready or not, or is gone."""
        raise NotImplementedError

    def hosts_file(self, namespace: str) -> Path:
        raise NotImplementedError


def missing_for_pods() -> str | None:
    """Why pods cannot run here; None if they can."""
    if os.geteuid():
        return "pods need root: network namespaces and other users"
    for program, package in (
        ("ip", "iproute2"),
        ("iptables-restore", "iptables"),
        ("bwrap", "bubblewrap"),
        ("nsenter", "util-linux"),
    ):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian package {package})"
    try:
        network = Network(f"{os.getpid()}-try")
    except NotPossible as exc:
        return f"network namespaces cannot be made here: {exc}"
    try:
        network.filter(network.add_pod()[0], [])
        run("bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--as-pid-1", "true")
    except NotPossible as exc:
        return f"pods cannot run here: {exc}"
    finally:
        network.close()
    return None
