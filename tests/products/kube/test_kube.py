"""Manifests of a universe: stable bytes, schemas of Kubernetes, the rules of spec-4 (T0 to T2)."""

import copy
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.hubprocess import report, veen

from veen.cli.shared.output import Exit
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.identity import BirthCertificate
from veen.hub.process.config import load
from veen.products.kube.objects import HubFacts
from veen.products.kube.render import cluster_manifests, kustomization, manifests, to_yaml
from veen.products.kube.rules import RULES, VERSIONS, check_manifests, check_schemas, find_mounted_secrets
from veen.products.kube.universe import UniverseError, parse_universe

UNIVERSE = """
universe = "default"
version = "0.1.0"

[authority]
storage = "5Gi"

[[tenants]]
id = "acme-prod"
storage = "20Gi"
storage_class = "fast.ssd"
[tenants.config.retention]
payloads = "90d"
[tenants.config.listen]
max_connections = 100

[[tenants]]
id = "team1-dev"

[[bridges]]
name = "core"
source = "authority"
target = "acme-prod"
streams = ["core/*", "wallet/*"]

[selftest]
schedule = "17 3 * * *"
"""
ROOT = Path(__file__).parents[3]
NAMESPACES = ("veen-system", "veen-tenant-acme-prod", "veen-tenant-team1-dev")
FACTS = {
    name: HubFacts(
        pin=f"ed25519:{number:064x}", selftest_issuer=f"{number + 9:064x}", selftest_streams=("veen/selftest/7",)
    )
    for number, name in enumerate(NAMESPACES, start=1)
}


@pytest.fixture(scope="module")
def objects():
    return manifests(parse_universe(UNIVERSE, "9.9"), FACTS)


def faults(objects):
    return check_manifests(objects, secrets=find_mounted_secrets(objects))


def by_name(objects, kind, namespace, name):
    (match,) = [
        o
        for o in objects
        if (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) == (kind, namespace, name)
    ]
    return match


def hub_of(objects, namespace="veen-tenant-acme-prod"):
    kind, name = ("StatefulSet", "veen-authority-hub") if namespace == "veen-system" else ("Deployment", "veen-hub")
    return by_name(objects, kind, namespace, name)


def to_text(o):
    return json.dumps(o, sort_keys=True)


# --- T0: bytes ---------------------------------------------------------------------------------------------------


def test_the_same_universe_gives_the_same_bytes_and_they_read_back(objects):
    text = to_yaml(objects)
    again = manifests(parse_universe(UNIVERSE, "9.9"), dict(reversed(FACTS.items())))
    assert to_yaml(again) == text
    assert list(yaml.safe_load_all(text)) == objects
    assert "&id" not in text  # no aliases: a person can cut one object out


def test_namespaces_come_first_and_pods_after_what_they_mount(objects):
    kinds = [o["kind"] for o in objects]
    assert kinds[:3] == ["Namespace"] * 3
    for before, after in (("ConfigMap", "Deployment"), ("PersistentVolumeClaim", "StatefulSet"), ("Service", "Job")):
        assert max(n for n, kind in enumerate(kinds) if kind == before) < kinds.index(after)


def test_no_private_key_is_in_the_manifests(tmp_path):
    made(tmp_path)
    text = report("kube", "render", "--file", tmp_path / "universe.toml")["yaml"]
    keys = list((tmp_path / "keys").rglob("*.key"))
    assert len(keys) == 6
    for path in keys:
        assert path.read_text().strip() not in text
    assert "kind: Secret" not in text


def test_a_kustomize_base_has_the_same_objects(objects):
    files = kustomization(parse_universe(UNIVERSE, "9.9"), FACTS)
    base = yaml.safe_load(files.pop("kustomization.yaml"))
    assert base["resources"] == [f"{name}.yaml" for name in NAMESPACES]
    assert sorted(files) == sorted(base["resources"])
    inside = [o for text in files.values() for o in yaml.safe_load_all(text)]
    assert sorted(map(to_text, inside)) == sorted(map(to_text, objects))


# --- T1: schemas -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_schemas_of_three_versions_take_every_object(objects):
    assert len(VERSIONS) == 3
    assert check_schemas(objects) == []


def test_schemas_find_what_an_api_server_would_refuse(objects):
    wrong = copy.deepcopy(objects)
    hub_of(wrong)["spec"]["replicas"] = "1"
    hub_of(wrong)["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    places = {(fault.code, fault.place) for fault in check_schemas(wrong, ["1.34"])}
    assert places == {("K.SCHEMA", "Deployment veen-tenant-acme-prod/veen-hub")}


# --- T2: spec-4 --------------------------------------------------------------------------------------------------


@pytest.mark.req("K8S-01", "K8S-02", "K8S-04", "K8S-05", "K8S-07", "K8S-08", "K8S-17", "K8S-23")
def test_what_is_rendered_keeps_every_rule(objects):
    assert faults(objects) == []


def _labels(o):
    o["metadata"]["labels"].pop("veen.io/universe-id")


BROKEN = {
    "K.NAMESPACE": lambda objects: hub_of(objects)["metadata"].update(namespace="default"),
    "K.LABELS": lambda objects: _labels(hub_of(objects)),
    "K.AUTHORITY": lambda objects: objects.remove(hub_of(objects, "veen-system")),
    "K.TENANT": lambda objects: objects.append(
        {**copy.deepcopy(hub_of(objects)), "metadata": hub_of(objects)["metadata"] | {"name": "second"}}
    ),
    "K.WRITER": lambda objects: hub_of(objects)["spec"].update(strategy={"type": "RollingUpdate"}),
    "K.COMMAND": lambda objects: container_of(objects)["args"].remove("--profile=tenant"),
    "K.CONFIG": lambda objects: by_name(objects, "ConfigMap", NAMESPACES[1], "veen-hub-config")["data"].update(
        {"hub.yaml": "listen: {}\nkeys_dir: /k\n"}
    ),
    "K.PROBES": lambda objects: container_of(objects)["livenessProbe"]["httpGet"].update(path="/readyz"),
    "K.STORAGE": lambda objects: (
        volume_of(objects, "veen-data").pop("persistentVolumeClaim")
        and volume_of(objects, "veen-data").update(emptyDir={})
    ),
    "K.RESTRICTED": lambda objects: container_of(objects)["securityContext"].update(readOnlyRootFilesystem=False),
    "K.SECRETS": lambda objects: [
        mount.pop("readOnly") for mount in container_of(objects)["volumeMounts"] if mount["name"] == "veen-keys"
    ],
    "K.MOUNTS": lambda objects: objects.remove(by_name(objects, "ConfigMap", NAMESPACES[1], "veen-hub-config")),
    "K.SELECTORS": lambda objects: by_name(objects, "Service", NAMESPACES[1], "veen-hub")["spec"]["ports"][0].update(
        targetPort="https"
    ),
    "K.NETWORK": lambda objects: objects.remove(by_name(objects, "NetworkPolicy", NAMESPACES[1], "veen-hub")),
    "K.OPERATOR": lambda objects: by_name(objects, "RoleBinding", NAMESPACES[1], "veen-operator")["roleRef"].update(
        name="cluster-admin"
    ),
    "K.SELFTEST": lambda objects: by_name(objects, "Job", NAMESPACES[1], "veen-selftest-core")["spec"]["template"][
        "spec"
    ]["containers"][0].update(args=["core", "--hub", "http://elsewhere:8080"]),
}


def container_of(objects):
    return hub_of(objects)["spec"]["template"]["spec"]["containers"][0]


def volume_of(objects, name):
    (volume,) = [v for v in hub_of(objects)["spec"]["template"]["spec"]["volumes"] if v["name"] == name]
    return volume


@pytest.mark.req("K8S-01", "K8S-02", "K8S-04", "K8S-05", "K8S-07", "K8S-08", "K8S-09", "K8S-17", "K8S-18", "K8S-23")
@pytest.mark.parametrize("code", sorted(RULES))
def test_each_rule_finds_its_fault(objects, code):
    wrong = copy.deepcopy(objects)
    BROKEN[code](wrong)
    assert code in {fault.code for fault in faults(wrong)}


@pytest.mark.req("K8S-07")
def test_an_authority_never_lies_on_an_empty_dir(objects):
    wrong = copy.deepcopy(objects)
    (volume,) = [
        v for v in hub_of(wrong, "veen-system")["spec"]["template"]["spec"]["volumes"] if v["name"] == "veen-data"
    ]
    volume.pop("persistentVolumeClaim")
    volume["emptyDir"] = {}
    assert "an authority on emptyDir loses its log with its pod" in {fault.what for fault in faults(wrong)}
    assert not hub_of(objects, "veen-system")["spec"].get("volumeClaimTemplates")  # the claim outlives the StatefulSet


@pytest.mark.req("K8S-03")
def test_workloads_say_profile_version_and_configuration(objects):
    annotations = hub_of(objects)["metadata"]["annotations"]
    assert annotations["veen.io/profile"] == "tenant"
    assert annotations["veen.io/version"] == "0.1.0"
    assert len(annotations["veen.io/config-hash"]) == 16
    other = manifests(parse_universe(UNIVERSE.replace("90d", "91d"), "9.9"), FACTS)
    assert hub_of(other)["metadata"]["annotations"]["veen.io/config-hash"] != annotations["veen.io/config-hash"]
    template = hub_of(other)["spec"]["template"]["metadata"]["annotations"]
    assert template["veen.io/config-hash"] != annotations["veen.io/config-hash"]  # so that pods are made anew


@pytest.mark.req("K8S-09")
def test_the_hub_takes_the_configuration_that_is_rendered(objects, tmp_path):
    for namespace, name in (
        ("veen-system", "veen-authority-config"),
        ("veen-tenant-acme-prod", "veen-hub-config"),
        ("veen-tenant-team1-dev", "veen-hub-config"),
    ):
        path = tmp_path / "hub.yaml"
        path.write_text(by_name(objects, "ConfigMap", namespace, name)["data"]["hub.yaml"])
        config = load(path, {}, {"data_dir": str(tmp_path)})
        assert config.role == ("authority" if namespace == "veen-system" else "tenant")
        assert str(config.keys_dir) == "/etc/veen/keys"
        assert config.identity == ("ephemeral" if namespace == "veen-tenant-team1-dev" else "durable")
        if namespace != "veen-system":
            assert config.authority_url == "http://veen-authority.veen-system.svc.cluster.local:8080"


def test_a_bridge_is_placed_beside_its_tenant(objects):
    bridge = by_name(objects, "Deployment", "veen-tenant-acme-prod", "veen-bridge-core")
    (container,) = bridge["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["veen-bridge"]
    assert container["args"][:3] == [
        "--source-url=http://veen-authority.veen-system.svc.cluster.local:8080",
        "--target-url=http://veen-hub.veen-tenant-acme-prod.svc.cluster.local:8080",
        "--streams=core/*,wallet/*",
    ]
    assert {"name": "VEEN_ROLE", "value": "bridge"} in container["env"]


@pytest.fixture(scope="module")
def wide():
    return cluster_manifests(parse_universe(UNIVERSE, "9.9"))


def test_what_an_administrator_applies_keeps_schemas_and_rules_alone_and_with_the_universe(objects, wide):
    assert check_schemas(wide) == []
    assert faults(wide) == []
    assert faults([*objects, *wide]) == []
    broken = copy.deepcopy(wide)
    by_name(broken, "ClusterRoleBinding", None, "veen-operator")["subjects"][0]["name"] = "somebody"
    assert {fault.code for fault in faults(broken)} == {"K.OPERATOR"}


@pytest.mark.req("K8S-16")
def test_an_operator_may_touch_veen_namespaces_only(objects, wide):
    """Cluster-wide it has Namespaces and RoleBindings to make; all else comes from a RoleBinding in a namespace."""
    (bound,) = [o for o in wide if o["kind"] == "ClusterRoleBinding"]
    assert bound["roleRef"]["name"] == "veen-operator"
    rules = by_name(wide, "ClusterRole", None, "veen-operator")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "namespaces", "rolebindings", "clusterroles",
    }  # fmt: skip
    (bind,) = [rule for rule in rules if "clusterroles" in rule["resources"]]
    assert (bind["verbs"], bind["resourceNames"]) == (["bind"], ["veen-operator-namespace"])
    (namespaces,) = [rule["verbs"] for rule in rules if "namespaces" in rule["resources"]]
    assert namespaces == ["create", "delete", "get", "list", "patch", "watch"]
    inside = by_name(wide, "ClusterRole", None, "veen-operator-namespace")["rules"]
    assert all("*" not in rule["verbs"] and "*" not in rule["resources"] for rule in (*rules, *inside))
    verbs = {resource: rule["verbs"] for rule in inside for resource in rule["resources"]}
    assert (verbs["pods/log"], verbs["pods/exec"]) == (["get"], ["create"])
    assert not {"roles", "rolebindings", "namespaces", "nodes", "persistentvolumes"} & verbs.keys()
    assert {o["metadata"]["namespace"] for o in objects if o["kind"] == "RoleBinding"} == set(NAMESPACES)
    for o in objects:  # it may do with each kind what the commands do
        resource = f"{o['kind'].lower()}s".replace("policys", "policies")
        assert o["kind"] in ("Namespace", "RoleBinding") or {"create", "get", "patch"} <= set(verbs[resource]), resource


@pytest.mark.req("K8S-16")
def test_policies_limit_what_the_operator_does_across_the_cluster(wide):
    names = by_name(wide, "ValidatingAdmissionPolicy", None, "veen-operator-namespaces")["spec"]
    assert names["matchConstraints"]["resourceRules"][0]["operations"] == ["CREATE", "DELETE", "UPDATE"]
    assert "startsWith('veen-')" in names["validations"][0]["expression"]
    assert "== 'restricted'" in names["validations"][1]["expression"]  # else its pods could leave their sandbox
    bindings = by_name(wide, "ValidatingAdmissionPolicy", None, "veen-operator-bindings")["spec"]
    expressions = [validation["expression"] for validation in bindings["validations"]]
    for part in ("startsWith('veen-')", "'veen-operator-namespace'", "subject.namespace == 'veen-system'"):
        assert any(part in expression for expression in expressions), part
    for spec in (names, bindings):
        assert spec["matchConditions"][0]["expression"].endswith("'system:serviceaccount:veen-system:veen-operator'")
        # every default of the API server: the field is atomic, and another manager would conflict over what is left out
        constraints = spec["matchConstraints"]
        assert constraints.keys() == {"matchPolicy", "namespaceSelector", "objectSelector", "resourceRules"}
        assert all(rule["scope"] == "*" for rule in constraints["resourceRules"])


def test_pods_get_no_variables_of_services_that_settings_are_named_like(objects):
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "StatefulSet", "Job")]
    assert pods
    assert {pod["enableServiceLinks"] for pod in pods} == {False}


def test_the_pod_of_the_authority_is_replaced_though_it_never_became_ready(objects):
    assert hub_of(objects, "veen-system")["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.req("K8S-15")
def test_self_tests_run_once_and_by_the_clock(objects):
    for namespace, suite in (("veen-system", "authority"), ("veen-tenant-team1-dev", "core")):
        once = by_name(objects, "Job", namespace, f"veen-selftest-{suite}")
        periodic = by_name(objects, "CronJob", namespace, f"veen-selftest-{suite}-periodic")
        assert once["spec"]["template"]["spec"]["containers"][0]["args"][0] == suite
        assert periodic["spec"]["schedule"] == "17 3 * * *"
        assert periodic["spec"]["jobTemplate"]["spec"] == once["spec"]


@given(st.data())
def test_hand_written_yaml_never_ends_a_check_in_a_traceback(data):
    wrong = copy.deepcopy(manifests(parse_universe(UNIVERSE, "9.9"), FACTS))
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(wrong))
        while isinstance(node, dict | list) and node:
            key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else list(range(len(node)))))
            if data.draw(st.booleans()) or not isinstance(node[key], dict | list):
                node[key] = data.draw(st.sampled_from([None, 7, "text", [], {}, [None], {"name": 3}]))
                break
            node = node[key]
    for fault in faults(wrong):
        assert fault.code.startswith("K.")


# --- universe.toml -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "universe is missing"),
        ("universe = 7", "universe: expected"),
        ("universe = 'Prod'", "universe: expected"),
        ("universe = 'a'\ntenant = []", "tenant: no such key; did you mean tenants?"),
        ("universe = 'a'\n[[tenants]]\nid = 'x_y'", r"tenants\[0\].id: expected"),
        ("universe = 'a'\n[[tenants]]\nid = 'x.y'", r"tenants\[0\].id: expected"),
        ("universe = 'a'\n[[tenants]]\nid = 'x'\nstorage = '10GB'", "storage: expected a size"),
        ("universe = 'a'\n[[tenants]]\nid = 'x'\n[[tenants]]\nid = 'x'", "x occurs twice"),
        ("universe = 'a'\n[[tenants]]\nid = 'x'\n[tenants.config]\nrole = 'authority'", "the profile sets this key"),
        ("universe = 'a'\n[[bridges]]\nname='b'\nsource='authority'\ntarget='x'\nstreams=['s']", "target is 'x'"),
        ("universe = 'a'\n[selftest]\nschedule = 'daily'", "five fields of cron"),
        ("universe = [", "not TOML"),
        ("universe = 'a'\ntenants = 3", "tenants: expected a list"),
    ],
)
def test_a_universe_that_cannot_be_is_refused_by_its_key(text, words):
    with pytest.raises(UniverseError, match=words):
        parse_universe(text, "1")


# --- commands ----------------------------------------------------------------------------------------------------


def made(directory):
    """A universe of three hubs."""
    file = directory / "universe.toml"
    report("kube", "init", "--file", file)
    report("kube", "tenant", "new", "acme-prod", "--storage", "20Gi", "--file", file)
    report("kube", "tenant", "new", "team1-dev", "--file", file)
    return file


@pytest.mark.req("K8S-18")
def test_keys_are_made_once_and_certified_for_a_first_start(tmp_path):
    file = made(tmp_path)
    tenants = report("kube", "tenant", "list", "--file", file)["tenants"]
    assert [(row["tenant"], row["storage"]) for row in tenants] == [("acme-prod", "20Gi"), ("team1-dev", None)]
    assert tenants[1]["pin"].startswith("root:ed25519:")  # a disposable hub makes its key anew, its root stays
    hub = tmp_path / "keys" / "veen-tenant-acme-prod" / "hub"
    (key_file,) = hub.glob("*.key")
    key = SigningKey(bytes.fromhex(key_file.read_text().strip()))
    certificate = BirthCertificate.from_bytes((hub / "birth.json").read_bytes())
    assert tenants[0]["pin"] == f"ed25519:{key.public.hex()}"
    assert certificate.hub_pk == key.public
    assert not (tmp_path / "keys" / "veen-tenant-team1-dev" / "hub" / "birth.json").exists()
    for path in (tmp_path / "keys").rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = veen("kube", "tenant", "new", "acme-prod", "--file", file)
    assert again.returncode == Exit.LOCAL
    assert b"twice" in again.stderr
    assert veen("kube", "init", "--file", file).returncode == Exit.LOCAL
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_render_validate_and_the_secrets_fit_each_other(tmp_path):
    file = made(tmp_path)
    manifests_file, secrets_file = tmp_path / "u.yaml", tmp_path / "s.yaml"
    manifests_file.write_text(report("kube", "render", "--file", file)["yaml"])
    secrets_file.write_text(report("kube", "render", "--secrets", "--file", file)["yaml"])
    done = report("kube", "validate", manifests_file, secrets_file)
    assert done["faults"] == []
    alone = veen("kube", "validate", manifests_file, "--no-schemas", "--json")
    assert alone.returncode == Exit.POLICY
    missing = {row["fault"] for row in json.loads(alone.stdout)["faults"]}
    assert missing == {
        "Secret veen-authority-keys is mounted and not there",
        "Secret veen-hub-keys is mounted and not there",
        "Secret veen-selftest-issuer is mounted and not there",
    }
    assert report("kube", "validate", manifests_file, "--no-schemas", "--without-secrets")["faults"] == []
    (tmp_path / "bad.yaml").write_text("a: [")
    assert veen("kube", "validate", tmp_path / "bad.yaml").returncode == Exit.LOCAL
    (tmp_path / "other.yaml").write_text("just: text\n")
    assert b"not an object of Kubernetes" in veen("kube", "validate", tmp_path / "other.yaml", "--no-schemas").stdout


def test_nothing_is_applied_without_a_context(tmp_path):
    file = made(tmp_path)
    for command in ("apply", "diff", "status"):
        done = veen("kube", command, "--file", file)
        assert done.returncode == Exit.USAGE
        assert b"--kube-context" in done.stderr


@pytest.mark.slow
def test_the_page_lists_every_rule_and_its_commands_work(tmp_path):
    page = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    for code, (what, _) in RULES.items():
        assert f"| `{code}` | {what} |" in page
    (walk,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(parse_universe(example, "1").tenants) == 2
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for line in walk.splitlines():
        command = line.removeprefix("$ ")
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
