"""A cluster in memory for tests of many sequences of commands: objects, claims, and hubs that only keep one rule.

A hub here begins a log if its volume is blank and its Secret has a birth certificate; with neither certificate nor log
it does not become ready (D-121). `histories` counts the logs that were begun under each key. The real hub does the
same, which tests/products/kube/test_mesh.py and the tests of the storage show.
"""

import copy
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.products.kube.minicluster import Kubectl, Objects, Refused, _pod_item

_WORKLOADS = ("Deployment", "StatefulSet")


class PaperJob:
    """A Job that has succeeded."""

    succeeded = True

    def output(self) -> str:
        return json.dumps({"checks": [], "failed": 0}) + "\n"


class PaperCluster(Objects):
    """Objects, and what hubs would make of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[tuple[str, str], tuple[str, ...]] = {}  # the key files of the hub that began the log there
        self.histories: dict[str, int] = {}  # by key file
        self.publics: dict[str, str] = {}
        self.learn: Callable[[], None] = lambda: None  # reads the public keys of the universe
        self.commands: list[list[str]] = []
        self.refusal: tuple[str, str] | None = None  # a verb, and what kubectl says of it
        self._ready: set[tuple[str, str]] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PaperCluster":
        twin = PaperCluster()
        for name in ("_objects", "claims", "histories", "publics", "_ready"):
            setattr(twin, name, copy.deepcopy(getattr(self, name), memo))
        twin.jobs = dict(self.jobs)
        return twin

    def run(self, command: Sequence[str], *, input: str = "", **_: Any) -> "subprocess.CompletedProcess[str]":
        """Stand in for `subprocess.run` of kubectl."""
        words = list(command[1:])
        self.commands.append(words)
        if self.refusal is not None and self.refusal[0] in words:
            return subprocess.CompletedProcess(words, 1, "", self.refusal[1])
        try:
            code, out, err = Kubectl(self, words, input).run()
        except Refused as exc:
            code, out, err = 1, "", f"Error from server: {exc}\n"
        return subprocess.CompletedProcess(words, code, out, err)

    def lose_volumes(self, *, is_pod_replaced: bool = True) -> None:
        """Every claim is blank, and each pod is made anew."""
        self.claims.clear()
        for kind in _WORKLOADS:
            for o in self.of(kind):
                if is_pod_replaced:
                    self._start(o)

    def _reconcile(self, key: tuple[str, str, str]) -> None:
        kind, namespace, name = key
        manifest = self._objects.get(key)
        if kind == "Job":
            self.jobs[namespace, name] = PaperJob()
        elif kind == "Secret" or (kind in _WORKLOADS and manifest is not None):
            for o in [o for kind in _WORKLOADS for o in self.of(kind, namespace)]:
                if kind != "Secret" or (namespace, o["metadata"]["name"]) not in self._ready:  # it waits for its Secret
                    self._start(o)
        elif kind == "PersistentVolumeClaim" and manifest is None:
            self.claims.pop((namespace, name), None)

    def _forget_volumes(self, namespace: str) -> None:
        self.claims = {place: keys for place, keys in self.claims.items() if place[0] != namespace}
        self._ready = {place for place in self._ready if place[0] != namespace}

    def _start(self, workload: Mapping[str, Any]) -> None:
        metadata, pod = workload["metadata"], workload["spec"]["template"]["spec"]
        place = (metadata["namespace"], metadata["name"])
        self._ready.discard(place)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        if "veen-data" not in volumes or not workload["spec"]["replicas"]:
            return
        secret = self.find("Secret", place[0], volumes["veen-keys"]["secret"]["secretName"])
        if secret is None:
            return
        if "emptyDir" in volumes["veen-data"]:
            self._ready.add(place)  # each pod has a key of its own
            return
        claim = (place[0], volumes["veen-data"]["persistentVolumeClaim"]["claimName"])
        if claim not in self.claims:
            if "birth.json" not in secret["data"]:
                return  # E.STORAGE.BLANK_LOG
            self.claims[claim] = tuple(sorted(secret["data"]))
            for name in secret["data"]:
                if name.endswith(".key"):
                    self.histories[name] = self.histories.get(name, 0) + 1
        self._ready.add(place)

    def ready_count(self, namespace: str, name: str) -> int:
        return int((namespace, name) in self._ready)

    def pod_items(self, namespace: str) -> list[dict[str, Any]]:
        return [
            _pod_item(f"{o['metadata']['name']}-0", namespace, o["spec"]["template"]["metadata"], place in self._ready)
            for kind in _WORKLOADS
            for o in self.of(kind, namespace)
            if o["spec"]["replicas"] and (place := (namespace, o["metadata"]["name"]))
        ]

    def wait_ready(self, namespace: str, name: str) -> None:
        if (namespace, name) not in self._ready:
            raise Refused("timed out waiting for the condition")

    def execute(self, namespace: str, name: str, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Answer for a hub with its keys, or with the rotation to the key that its Secret has more."""
        if (namespace, name) not in self._ready:
            raise Refused("container not found")
        workload = next(o for kind in _WORKLOADS for o in self.of(kind, namespace) if o["metadata"]["name"] == name)
        volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
        secret = self.find("Secret", namespace, volumes["veen-keys"]["secret"]["secretName"])
        assert secret is not None
        claim = (namespace, volumes["veen-data"]["persistentVolumeClaim"]["claimName"])
        own = [key for key in self.claims[claim] if key.endswith(".key")]
        added = [key for key in sorted(secret["data"]) if key.endswith(".key") and key not in own]
        if "rotate" in words:
            self.claims[claim] = (*self.claims[claim], *added)
            return subprocess.CompletedProcess(
                words, 0, json.dumps({"hub_pk": self.key(added[0]), "valid_from": 7}), ""
            )
        entries = [{"hub_pk": self.key(key), "valid_from": 1, "valid_until": None} for key in own]
        return subprocess.CompletedProcess(words, 0, json.dumps({"hub_keys": entries}), "")

    def key(self, name: str) -> str:
        """Return the public key of a key file, which a test has named."""
        return self.publics[name]
