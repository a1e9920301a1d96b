"""Pods that run what `veen kube render` prints: authority, tenants, Jobs, and what becomes of them (T3, 001 spec-4).

One universe runs for all tests of this file; each test leaves it as it was: every hub ready. The module `kubelet` says
how pods run here, and in what that differs from a cluster.
"""

import base64
import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.products.kube.kubelet import missing_for_pods
from tests.products.kube.mesh import ACME, AUTHORITY, CONTEXT, SELFTESTS, TEAM, Mesh
from tests.waiting import until

from veen.products.kube.cluster import json_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), pytest.mark.xdist_group("mesh")]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    if (reason := missing_for_pods()) is not None:
        pytest.skip(reason)
    mesh = Mesh(tmp_path_factory.mktemp("mesh"))
    try:
        mesh.applied = mesh.kube("apply", *CONTEXT)
        mesh.wait_ready()
        yield mesh
    finally:
        mesh.cluster.close()


def statuses(mesh, place):
    return mesh.cluster.status(*place, "/healthz"), mesh.cluster.status(*place, "/readyz")


@pytest.mark.req("K8S-10", "K8S-14", "K8S-22", "AGB-18")
def test_goals_k8s_disposable_mesh(mesh):
    """Authority and tenants from the same bytes that a cluster gets; their self-tests pass; they are ready."""
    assert mesh.applied["secrets_created"] == 6
    mesh.wait_ready()
    mesh.kube("apply", *CONTEXT)  # the self-tests again: other tests may have ended a hub under the first ones
    for namespace, name in SELFTESTS.items():
        job = mesh.cluster.wait_job(namespace, name)
        assert job.succeeded, job.output()
        outcome = json_in(job.output())
        assert outcome["failed"] == 0
    mesh.wait_ready()
    for place in (AUTHORITY, ACME, TEAM):
        assert statuses(mesh, place) == (200, 200)
    rows = mesh.kube("status", *CONTEXT)["hubs"]
    assert [(row["namespace"], row["state"], row["configuration_as_rendered"]) for row in rows] == [
        (place[0], "ready", True) for place in (AUTHORITY, ACME, TEAM)
    ]
    assert not mesh.kube("diff", *CONTEXT)["changes"]


def test_containers_run_without_privileges_and_secrets_are_for_their_group(mesh):
    code = (
        "import os, json; keys = sorted(n for n in os.listdir('/etc/veen/keys') if n.endswith('.key'));"
        "modes = [oct(os.stat(f'/etc/veen/keys/{n}').st_mode & 0o777) for n in keys];"
        "status = dict(line.split(':', 1) for line in open('/proc/1/status'));"
        "print(json.dumps([os.getuid(), os.getgid(), modes, int(status['CapEff'], 16), status['NoNewPrivs'].strip(),"
        " [d for d in ('/', '/etc/veen', '/etc/veen/keys', '/usr') if os.access(d, os.W_OK)]]))"
    )
    pod = mesh.cluster.pod(*ACME)
    done = pod.execute(["python3", "-c", code])
    user, group, modes, capabilities, no_new_privileges, writable = json.loads(done.stdout)
    assert (user, group, capabilities, no_new_privileges, writable) == (10001, 10001, 0, "1", []), done.stderr
    assert set(modes) == {"0o440"}


@pytest.mark.req("K8S-19")
def test_a_tenant_without_authority_is_alive_and_not_ready(mesh):
    authority = next(o for o in mesh.rendered() if o["kind"] == "StatefulSet")
    stopped = {**authority, "spec": {**authority["spec"], "replicas": 0}}
    mesh.cluster.apply([stopped])
    mesh.cluster.delete_pod(*ACME)  # a hub that was reachable a moment ago counts as reachable
    until(lambda: statuses(mesh, ACME)[0] == 200)
    assert statuses(mesh, ACME) == (200, 503)
    mesh.cluster.apply([authority])
    mesh.wait_ready()
    assert statuses(mesh, ACME) == (200, 200)


@pytest.mark.req("K8S-08")
def test_a_pod_that_is_killed_comes_back_with_its_volume_and_the_log_goes_on(mesh):
    first = mesh.send(ACME[0], "before the kill")
    pod = mesh.cluster.pod(*ACME)
    restarts = pod.restarts
    pod.signal(signal.SIGKILL)
    until(lambda: pod.restarts > restarts)
    mesh.cluster.wait_ready(*ACME)
    assert mesh.cluster.pod(*ACME) is pod  # the container alone was started again
    assert mesh.send(ACME[0], "after the kill") == first + 1
    mesh.cluster.delete_pod(*ACME)
    assert (pod.exit_code, pod.was_killed) == (0, False)  # as process 1 it ends when it is asked to
    mesh.cluster.wait_ready(*ACME)
    assert mesh.send(ACME[0], "in another pod") == first + 2
    assert mesh.bodies(ACME[0])[-3:] == ["before the kill", "after the kill", "in another pod"]


def test_a_disposable_tenant_is_another_hub_in_each_pod_under_one_root(mesh):
    """D-121: the same root, another key, hence no second history under one key."""
    first = mesh.key(TEAM[0])
    pod = mesh.cluster.pod(*TEAM)
    restarts = pod.restarts
    pod.signal(signal.SIGKILL)  # emptyDir outlives the container
    until(lambda: pod.restarts > restarts)
    mesh.cluster.wait_ready(*TEAM)
    assert mesh.key(TEAM[0]) == first
    mesh.cluster.delete_pod(*TEAM)
    mesh.cluster.wait_ready(*TEAM)
    assert mesh.key(TEAM[0]) != first


def test_a_durable_hub_refuses_a_blank_volume_after_its_birth(mesh):
    """D-121, with a certificate that has expired: the pod says why it does not start."""
    file = mesh.root / "late" / "universe.toml"
    file.parent.mkdir()
    mesh.cluster.veen("kube", "init", "--file", file, "--born-within", "1s")
    mesh.cluster.veen("kube", "tenant", "new", "late", "--storage", "1Gi", "--born-within", "1s", "--file", file)
    texts = [mesh.cluster.veen("kube", "render", *flags, "--file", file)["yaml"] for flags in ((), ("--secrets",))]
    place = ("veen-tenant-late", "veen-hub")
    objects = [o for text in texts for o in mesh.cluster.rendered(text) if mesh.cluster.namespace_of(o) == place[0]]
    until(lambda: time.time() > file.stat().st_mtime + 2)
    try:
        mesh.cluster.apply(sorted(objects, key=lambda o: o["kind"] != "Namespace"))
        until(lambda: "E.STORAGE.BLANK_LOG" in mesh.cluster.pod(*place).output())
        assert not mesh.cluster.pod(*place).ready
    finally:
        mesh.cluster.delete_namespace(place[0])


@pytest.mark.parametrize("loss", ["kube delete", "volume"])
def test_a_hub_that_lost_its_log_on_its_first_day_never_begins_a_second_one(mesh, loss):
    """The certificate is gone here and in the cluster as soon as the hub was ready."""
    file, place = mesh.root / f"first-day-{len(loss)}" / "universe.toml", ("veen-tenant-third", "veen-hub")
    file.parent.mkdir()
    mesh.cluster.veen("kube", "init", "--file", file)
    mesh.cluster.veen("kube", "tenant", "new", "third", "--storage", "1Gi", "--file", file)
    keys = file.parent / "keys" / place[0] / "hub"
    assert (keys / "birth.json").exists()
    universe = json.loads(
        json.dumps(mesh.cluster.rendered(mesh.cluster.veen("kube", "render", "--file", file)["yaml"]))
    )
    secrets = mesh.cluster.rendered(mesh.cluster.veen("kube", "render", "--secrets", "--file", file)["yaml"])
    inside = [o for o in (*universe, *secrets) if mesh.cluster.namespace_of(o) == place[0]]
    try:
        mesh.cluster.apply(sorted(inside, key=lambda o: o["kind"] != "Namespace"))
        mesh.cluster.wait_ready(*place)
        mesh.cluster.veen("kube", "status", *CONTEXT, "--file", file, code=6)  # other hubs are of another universe
        assert not (keys / "birth.json").exists()
        secret = mesh.cluster.find("Secret", place[0], "veen-hub-keys")
        assert secret is not None
        assert set(secret["data"]) == {path.name for path in keys.iterdir()}
        if loss == "volume":
            claims = list((mesh.cluster.root / "pvc" / place[0]).iterdir())
            assert claims
            for path in (path for claim in claims for path in claim.iterdir()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            mesh.cluster.delete_pod(*place)
        else:
            mesh.cluster.veen("kube", "delete", "third", "--yes", *CONTEXT, "--file", file)
            secrets = mesh.cluster.rendered(mesh.cluster.veen("kube", "render", "--secrets", "--file", file)["yaml"])
            inside = [o for o in (*universe, *secrets) if mesh.cluster.namespace_of(o) == place[0]]
            mesh.cluster.apply(sorted(inside, key=lambda o: o["kind"] != "Namespace"))
        until(lambda: "E.STORAGE.BLANK_LOG" in mesh.cluster.pod(*place).output())
        assert not mesh.cluster.pod(*place).ready
    finally:
        mesh.cluster.delete_namespace(place[0])


def test_process_1_of_a_container_ends_when_it_is_asked_to(mesh):
    """A self-test that waits for a hub that never comes: the kernel would ignore SIGTERM without a handler."""
    job = next(o for o in mesh.rendered() if o["kind"] == "Job" and o["metadata"]["namespace"] == ACME[0])
    waiting = json.loads(json.dumps(job).replace("http://veen-hub:8080", "http://127.0.0.1:9"))
    waiting["metadata"]["name"] = "waiting"
    mesh.cluster.apply([waiting])
    pods = mesh.cluster.jobs[ACME[0], "waiting"].pods
    until(lambda: pods and pods[0].handles(signal.SIGTERM))
    mesh.cluster.delete("Job", ACME[0], "waiting")
    pod = pods[0]
    assert (pod.exit_code, pod.was_killed) == (128 + signal.SIGTERM, False)


def app_pod(name, labels):
    """A program of somebody else in a tenant's namespace that asks its hub again and again until it answers."""
    code = (
        "import sys, urllib.request as u\n"
        "try:\n    print(u.urlopen('http://veen-hub:8080/healthz', timeout=20).status)\n"
        "except OSError as e:\n    print(e); sys.exit(3)\n"
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": ACME[0]},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "securityContext": {"runAsUser": 10002, "runAsGroup": 10002},
                    "containers": [{"name": "app", "command": ["python3", "-c", code]}],
                },
            },
        },
    }


@pytest.mark.req("K8S-17")
def test_only_pods_that_the_network_policy_names_reach_a_hub(mesh):
    mesh.cluster.wait_ready(*ACME)
    mesh.cluster.apply([app_pod("with-access", {"veen.io/access": "true"}), app_pod("without-access", {"app": "shop"})])
    try:
        allowed = mesh.cluster.wait_job(ACME[0], "with-access")
        refused = mesh.cluster.wait_job(ACME[0], "without-access")
        assert allowed.succeeded, allowed.output()
        assert not refused.succeeded
        assert "refused" in refused.output()
    finally:
        for name in ("with-access", "without-access"):
            mesh.cluster.delete("Job", ACME[0], name)


@pytest.mark.req("K8S-10", "K8S-22", "K8S-23")
def test_a_tenant_comes_and_goes_and_nobody_else_notices(mesh):
    mesh.wait_ready()
    others = {place: mesh.cluster.pod(*place) for place in (AUTHORITY, ACME, TEAM)}
    mesh.new_tenant("brief", "--storage", "1Gi")
    place = ("veen-tenant-brief", "veen-hub")
    mesh.kube("apply", *CONTEXT)
    mesh.cluster.wait_ready(*place)
    claims = mesh.root / "cluster" / "pvc" / place[0]
    assert list(claims.rglob("hub-identity.json"))
    deleted = mesh.kube("delete", "brief", "--yes", *CONTEXT)
    assert deleted == {"namespace": place[0], "context": CONTEXT[1], "deleted": True}
    assert not claims.exists()
    done = mesh.kube("tenant", "destroy", "brief", "--yes", *CONTEXT)
    assert done["pin"] == mesh.pins.pop(place[0])
    assert list(Path(done["keys"]).glob("hub/*.key"))
    assert not [o for o in mesh.cluster.everything() if mesh.cluster.namespace_of(o) == place[0]]
    assert "brief" not in [row["tenant"] for row in mesh.kube("tenant", "list")["tenants"]]
    for other, pod in others.items():
        assert mesh.cluster.pod(*other) is pod
        assert pod.ready
        assert statuses(mesh, other) == (200, 200)


@pytest.mark.req("K8S-22", "K8S-15")
def test_an_upgrade_restarts_every_hub_and_runs_the_self_tests_again(mesh):
    """Two versions of the image are one program here: shown is that each pod is replaced in its turn, and works."""
    before = {place: mesh.cluster.pod(*place) for place in (AUTHORITY, ACME, TEAM)}
    position = mesh.send(ACME[0], "before the upgrade")
    done = mesh.kube("upgrade", "0.1.1", *CONTEXT)
    assert (done["hubs"], done["selftests"], done["version"]) == (3, 3, "0.1.1")
    for place, pod in before.items():
        assert mesh.cluster.pod(*place) is not pod
        assert mesh.cluster.pod(*place).container["image"] == "veen-hub:0.1.1"
        assert statuses(mesh, place) == (200, 200)
        assert (pod.exit_code, pod.was_killed) == (0, False)
    assert mesh.send(ACME[0], "after the upgrade") == position + 1
    assert {row["version"] for row in mesh.kube("status", *CONTEXT)["hubs"]} == {"0.1.1"}


@pytest.mark.req("K8S-22")
def test_a_hub_gets_its_next_key_from_a_second_secret_and_its_pin_stays(mesh):
    position = mesh.send(ACME[0], "under the first key")
    done = mesh.kube("rotate-keys", "acme-prod", "--overlap", "1h", *CONTEXT)
    assert done["secret"] == "veen-hub-keys-next"
    mesh.cluster.wait_ready(*ACME)
    assert mesh.key(ACME[0]) == done["hub_pk"]
    assert mesh.pins[ACME[0]] != done["hub_pk"]
    assert mesh.send(ACME[0], "to a hub with two keys") == position + 1  # by the pin of the first
    volumes = mesh.cluster.pod(*ACME).spec["volumes"]
    assert "veen-hub-keys-next" in [v["secret"]["secretName"] for v in volumes if "secret" in v]
    assert not mesh.kube("diff", *CONTEXT)["changes"]
    assert mesh.kube("job", "selftest", "acme-prod", *CONTEXT)["checks"]
    verified = mesh.cluster.pod(*ACME).execute(["veen-cli", "hub", "key", "verify-rotation", "/var/lib/veen", "--json"])
    assert json.loads(verified.stdout)["ok"]
    refused = mesh.kube("rotate-keys", "team1-dev", *CONTEXT, code=5)
    assert "disposable" in refused["message"] + refused["cause"]


@pytest.mark.req("K8S-13")
def test_commands_run_in_the_cluster_with_keys_from_a_secret(mesh):
    mesh.send(ACME[0], "from outside")
    directory = mesh.home / "identities" / "default"
    data = {
        name: base64.b64encode((directory / name).read_bytes()).decode() for name in ("identity_card", "keystore.enc")
    }
    metadata = {"name": "writer", "namespace": ACME[0]}
    mesh.cluster.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data, "immutable": True}])
    for text in ("from inside", "from inside, again"):  # nothing is remembered between them
        sent = mesh.kube("job", "send", "acme-prod", "orders", text, "--secret", "writer", *CONTEXT)
        assert sent["answer"]["verified"]
    answer = mesh.kube("job", "stream", "acme-prod", "orders", "--secret", "writer", *CONTEXT)["answer"]
    assert [entry["body"] for entry in answer["entries"]][-3:] == ["from outside", "from inside", "from inside, again"]
    failed = mesh.kube("job", "stream", "acme-prod", "unheard", "--secret", "writer", *CONTEXT, code=7)
    assert failed["code"] == "E.KUBE.JOB"
    mesh.client(ACME[0], "resync", "orders")  # the client outside must hear what was sent under its key


@pytest.mark.req("K8S-13")
def test_a_job_sends_with_a_token_though_its_keystore_is_read_only(mesh):
    """The hub asks for tokens, as by default; the failure of a Job shows the log of the container that failed."""
    mesh.send(ACME[0], "without a token")
    card, writer = mesh.cluster.veen("id", "show", home=mesh.home), mesh.home / "identities" / "default"
    cap = mesh.root / "cap.cbor"
    words = ("--subject", card["card"], "--stream", "orders", "--ttl", "1h", "--out", cap)
    mesh.cluster.veen("cap", "issue", *words, home=mesh.home)
    files = {name: (writer / name).read_bytes() for name in ("identity_card", "keystore.enc")}
    data = {name: base64.b64encode(text).decode() for name, text in (files | {"cap.cbor": cap.read_bytes()}).items()}
    metadata = {"name": "with-token", "namespace": ACME[0]}
    mesh.cluster.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data, "immutable": True}])
    before = mesh.file.read_text()
    gate = f'capability_gating = true\ntrusted_issuers = ["{card["id_sign_pk"]}"]'
    try:
        mesh.file.write_text(before.replace("capability_gating = false", gate, 1))
        mesh.kube("apply", *CONTEXT)
        mesh.wait_ready()
        options = ("--secret", "with-token", *CONTEXT)
        for text in ("by a token", "by a token again"):
            assert mesh.kube("job", "send", "acme-prod", "orders", text, "--cap", *options)["answer"]["verified"]
        failed = mesh.kube("job", "send", "acme-prod", "orders", "x", "--identity", "nobody", *options, code=7)
        assert "nobody" in failed["cause"]
    finally:
        mesh.file.write_text(before)
        mesh.kube("apply", *CONTEXT)
        mesh.wait_ready()
        mesh.client(ACME[0], "resync", "orders")


BRIDGE = '\n[[bridges]]\nname = "core"\nsource = "acme-prod"\ntarget = "team1-dev"\nstreams = ["ord*"]\n'


def copies(mesh):
    """What the bridge wrote: bodies, and the messages of the source that they are copies of."""
    entries = mesh.client(TEAM[0], "stream", "orders")["entries"]
    return [(entry["body"], entry["parent_id"]) for entry in entries if entry["parent_id"]]


@pytest.mark.req("K8S-11", "K8S-12")
def test_a_bridge_copies_each_event_once_whatever_ends_it(mesh):
    mesh.send(ACME[0], "over the bridge 1")
    keys = mesh.root / "bridge"
    mesh.cluster.veen("keygen", "--out", keys, "--insecure-plain-keystore", home=mesh.root / "other")
    mesh.cluster.veen("id", "keyring", "share", "orders", "--read", "--out", mesh.root / "orders.key", home=mesh.home)
    shared = f"@{mesh.root / 'orders.key'}"
    mesh.cluster.veen("id", "keyring", "add", shared, "--identity", keys, home=mesh.root / "other")
    before = mesh.file.read_text()
    mesh.file.write_text(before + BRIDGE)
    mesh.kube("bridge-keys", "core", keys)
    place = (TEAM[0], "veen-bridge-core")
    try:
        assert mesh.kube("apply", *CONTEXT)["secrets_created"] == 1
        pod = mesh.cluster.pod(*place)
        until(lambda: pod.output().count('"copied"') == 1)
        pod.signal(signal.SIGKILL)
        mesh.send(ACME[0], "over the bridge 2")
        until(lambda: pod.output().count('"copied"') == 2)
        bridge = mesh.cluster.find("Deployment", *place)
        mesh.cluster.delete("Deployment", *place)  # what it remembers is gone with its pod
        assert (pod.was_killed, pod.exit_code) == (False, 0)  # it heeds SIGTERM
        mesh.send(ACME[0], "over the bridge 3")
        mesh.cluster.apply([bridge])
        until(lambda: '"copied"' in mesh.cluster.pod(*place).output())
        source = mesh.client(ACME[0], "stream", "orders")["entries"]
        assert copies(mesh) == [(entry["body"], entry["msg_id"]) for entry in source]
        assert mesh.bodies(ACME[0])[-3:] == [f"over the bridge {number}" for number in (1, 2, 3)]
        lines = [json.loads(line) for line in mesh.cluster.pod(*place).output().splitlines() if line.startswith("{")]
        assert {"ts", "level", "component", "role", "tenant_id", "operation"} <= lines[0].keys()
    finally:
        mesh.file.write_text(before)
        for kind, name in (
            ("Deployment", place[1]),
            ("ConfigMap", f"{place[1]}-config"),
            ("Secret", f"{place[1]}-keys"),
        ):
            mesh.cluster.delete(kind, TEAM[0], name)
