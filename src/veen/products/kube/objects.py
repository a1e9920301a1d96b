"""The Kubernetes objects of a universe, one function for each kind (001 spec-4, D-141 … D-147).

Pure: takes a `Universe` and public facts about keys, returns dictionaries. Private keys are handled by `secrets`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from veen.products.kube.universe import Bridge, Tenant, Universe

Manifest = dict[str, Any]

AUTHORITY_NAMESPACE: Final = "veen-system"
OPERATOR: Final = "veen-operator"
OPERATOR_NAMESPACE: Final = "veen-operator-namespace"  # the ClusterRole of its rights inside a VEEN namespace
PORT: Final = 8080
USER_ID: Final = 10001
_PART_OF: Final = {"app.kubernetes.io/part-of": "veen"}
_CONFIG_DIR: Final = "/etc/veen"
_DATA_DIR: Final = "/var/lib/veen"
_WORK_DIR: Final = "/work"
_GRACE_SEC: Final = 60
_KEEP_JOB_SEC: Final = 86400
_SELFTEST_SEC: Final = 900
_SELFTEST_WAIT_SEC: Final = 120  # Jobs start together with their hubs
_ACCESS: Final = {"veen.io/access": "true"}
_CALLERS: Final = ("bridge", "selftest", "cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFacts:
    """Public facts about a hub's keys for manifests."""

    pin: str  # ed25519:HEX, or root:ed25519:HEX of a disposable hub
    selftest_issuer: str  # hex: whose tokens the hub takes for the streams of self-tests
    selftest_streams: tuple[str, ...]
    keys_secret: str | None = None  # the Secret with its keys, once they were rotated; None: the one it began with


def namespace_of(tenant: Tenant | None) -> str:
    return AUTHORITY_NAMESPACE if tenant is None else tenant.namespace


def keys_secret_of(tenant: Tenant | None) -> str:
    """Return the name of the Secret with the first keys of a hub."""
    return "veen-authority-keys" if tenant is None else "veen-hub-keys"


def hub_url(tenant: Tenant | None, *, inside: bool = False) -> str:
    """Return the URL of a hub's Service; `inside` its namespace the short name is enough."""
    name = "veen-authority" if tenant is None else "veen-hub"
    return f"http://{name}:{PORT}" if inside else f"http://{name}.{namespace_of(tenant)}.svc.cluster.local:{PORT}"


def all_objects(universe: Universe, facts: Mapping[str, HubFacts]) -> Iterator[Manifest]:
    """Yield every object of the namespaces except Secrets; `facts` by namespace. `cluster_objects` yields the rest."""
    for tenant in (None, *universe.tenants):
        yield from _hub_objects(universe, tenant, facts[namespace_of(tenant)])
    for bridge in universe.bridges:
        yield from _bridge_objects(universe, bridge, facts)


# --- a hub -------------------------------------------------------------------------------------------------------


def _hub_objects(universe: Universe, tenant: Tenant | None, facts: HubFacts) -> Iterator[Manifest]:
    config = yaml.safe_dump(_hub_config(universe, tenant, facts), sort_keys=True)
    yield _namespace(universe, tenant)
    yield _operator_binding(universe, tenant)
    yield _object("v1", "ServiceAccount", "veen", universe, tenant, "hub", automountServiceAccountToken=False)
    yield _object("v1", "ConfigMap", _config_name(tenant), universe, tenant, "hub", data={"hub.yaml": config})
    claim = universe.authority if tenant is None else tenant
    if claim.storage is not None:
        yield _claim(universe, tenant, claim.storage, claim.storage_class)
    yield _service(universe, tenant)
    yield _workload(universe, tenant, config, facts.keys_secret or keys_secret_of(tenant))
    yield _object(
        "policy/v1", "PodDisruptionBudget", _hub_name(tenant), universe, tenant, "hub",
        spec={"maxUnavailable": 1, "selector": {"matchLabels": _selector("hub", tenant)}},
    )  # fmt: skip
    yield _network_policy(universe, tenant)
    yield from _selftests(universe, tenant, facts)


def _hub_config(universe: Universe, tenant: Tenant | None, facts: HubFacts) -> Manifest:
    """Return hub.yaml: the universe's settings for this hub, except for the keys that the profile fixes."""
    own = universe.authority.config if tenant is None else tenant.config
    config: Manifest = {
        "force_plain_http": True,  # TLS ends at the ingress; inside, the NetworkPolicy limits the callers
        "keys_dir": f"{_CONFIG_DIR}/keys",
        "hub_profile": "authority" if tenant is None else "tenant",
        "listen": {"host": "0.0.0.0", "port": PORT},  # noqa: S104 - all addresses of the pod
    }
    if tenant is None:
        config["authority_id"] = f"{universe.id}/authority"
    else:
        config["authority_url"] = hub_url(None)
        if tenant.storage is None:
            config["identity"] = "ephemeral"
    merged = _merge(config, own)
    admission = dict(merged.get("admission", {}))
    issuer = {"issuer": facts.selftest_issuer, "streams": list(facts.selftest_streams)}
    admission["trusted_issuers"] = [*admission.get("trusted_issuers", ()), issuer]
    return {**merged, "admission": admission}


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Manifest:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, Mapping) else value
    return merged


def _claim(universe: Universe, tenant: Tenant | None, storage: str, storage_class: str | None) -> Manifest:
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return _object("v1", "PersistentVolumeClaim", _data_name(tenant), universe, tenant, "hub", spec=spec)


def _service(universe: Universe, tenant: Tenant | None) -> Manifest:
    ports = [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": "http"}]
    name = "veen-authority" if tenant is None else "veen-hub"
    spec = {"ports": ports, "selector": _selector("hub", tenant), "type": "ClusterIP"}
    return _object("v1", "Service", name, universe, tenant, "hub", spec=spec)


def _workload(universe: Universe, tenant: Tenant | None, config: str, keys_secret: str) -> Manifest:
    """Return a StatefulSet for the authority, a Deployment for a tenant; never two pods at a time (D-142)."""
    role = "authority" if tenant is None else "tenant"
    environment = {"VEEN_ROLE": role, "VEEN_UNIVERSE_ID": universe.id, "VEEN_LOG_LEVEL": "info"}
    if tenant is not None:
        environment["VEEN_TENANT_ID"] = tenant.id
    container = _container(
        "hub", universe.image("veen-hub"), ["veen-hub"],
        [f"--profile={role}", f"--config={_CONFIG_DIR}/hub.yaml", f"--data-dir={_DATA_DIR}"],
        environment,
    ) | {
        "ports": [{"containerPort": PORT, "name": "http", "protocol": "TCP"}],
        "startupProbe": _probe("/healthz", periodSeconds=5, failureThreshold=120),  # a long log takes its time
        "livenessProbe": _probe("/healthz", periodSeconds=10),
        "readinessProbe": _probe("/readyz", periodSeconds=5),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    }  # fmt: skip
    container["volumeMounts"] += [
        {"mountPath": _CONFIG_DIR, "name": "veen-config", "readOnly": True},
        {"mountPath": f"{_CONFIG_DIR}/keys", "name": "veen-keys", "readOnly": True},
        {"mountPath": _DATA_DIR, "name": "veen-data"},
    ]
    storage = universe.authority.storage if tenant is None else tenant.storage
    data: Manifest = {"persistentVolumeClaim": {"claimName": _data_name(tenant)}} if storage else {"emptyDir": {}}
    pod = _pod(container) | {
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "veen-config", "configMap": {"name": _config_name(tenant)}},
            {"name": "veen-keys", "secret": {"defaultMode": 0o440, "secretName": keys_secret}},
            {"name": "veen-data", **data},
        ],
        "terminationGracePeriodSeconds": _GRACE_SEC,
    }
    marks = {"veen.io/config-hash": hashlib.sha256(config.encode()).hexdigest()[:16]}
    template = {"metadata": _template_metadata(universe, tenant, "hub", role, marks), "spec": pod}
    spec: Manifest = {"replicas": 1, "selector": {"matchLabels": _selector("hub", tenant)}, "template": template}
    if tenant is None:
        spec["serviceName"] = "veen-authority"
        # With the default, OrderedReady, a pod whose image cannot be pulled is never replaced by that of the version
        # before. There is one pod, so the order has no other meaning.
        spec["podManagementPolicy"] = "Parallel"
        return _object("apps/v1", "StatefulSet", _hub_name(None), universe, None, "hub", marks=marks, spec=spec)
    spec["strategy"] = {"type": "Recreate"}
    return _object("apps/v1", "Deployment", _hub_name(tenant), universe, tenant, "hub", marks=marks, spec=spec)


def _network_policy(universe: Universe, tenant: Tenant | None) -> Manifest:
    """Return the NetworkPolicy of a hub: callers are our pods, marked applications, and for the authority the
    tenants' hubs.
    """
    callers: list[Manifest] = [
        {"podSelector": {"matchExpressions": [{"key": "veen.io/role", "operator": "In", "values": list(_CALLERS)}]}},
        {"podSelector": {"matchLabels": _ACCESS}},
    ]
    if tenant is None:
        callers.append(
            {
                "namespaceSelector": {"matchLabels": _PART_OF},
                "podSelector": {
                    "matchExpressions": [{"key": "veen.io/role", "operator": "In", "values": ["tenant", "bridge"]}]
                },
            }
        )
    else:
        callers.append(
            {"namespaceSelector": {"matchLabels": _PART_OF}, "podSelector": {"matchLabels": {"veen.io/role": "bridge"}}}
        )
    spec = {
        "ingress": [{"from": callers, "ports": [{"port": PORT, "protocol": "TCP"}]}],
        "podSelector": {"matchLabels": _selector("hub", tenant)},
        "policyTypes": ["Ingress"],
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", _hub_name(tenant), universe, tenant, "hub", spec=spec)


# --- self-tests --------------------------------------------------------------------------------------------------


def _selftests(universe: Universe, tenant: Tenant | None, facts: HubFacts) -> Iterator[Manifest]:
    suite = "authority" if tenant is None else "core"
    name = f"veen-selftest-{suite}"
    spec = _selftest_job(universe, tenant, suite, facts)
    yield _object("batch/v1", "Job", name, universe, tenant, "selftest", spec=spec)
    if universe.selftest_schedule is not None:
        periodic = {
            "concurrencyPolicy": "Forbid",
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"metadata": {"labels": _labels(universe, tenant, "selftest")}, "spec": spec},
            "schedule": universe.selftest_schedule,
            "successfulJobsHistoryLimit": 1,
        }
        yield _object("batch/v1", "CronJob", f"{name}-periodic", universe, tenant, "selftest", spec=periodic)


def _selftest_job(universe: Universe, tenant: Tenant | None, suite: str, facts: HubFacts) -> Manifest:
    environment = {"VEEN_ROLE": "selftest", "VEEN_UNIVERSE_ID": universe.id, "HOME": _WORK_DIR}
    if tenant is not None:
        environment["VEEN_TENANT_ID"] = tenant.id
    arguments = [suite, "--hub", hub_url(tenant, inside=True), "--pin", facts.pin]
    arguments += ["--issuer-key", "/secrets/issuer.key", "--stream", facts.selftest_streams[0]]
    arguments += ["--wait", str(_SELFTEST_WAIT_SEC)]
    container = _container("selftest", universe.image("veen-selftest"), ["veen-selftest"], arguments, environment)
    container["volumeMounts"] += [
        {"mountPath": _WORK_DIR, "name": "work"},
        {"mountPath": "/secrets", "name": "selftest-issuer", "readOnly": True},
    ]
    pod = _pod(container) | {
        "restartPolicy": "Never",
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "work", "emptyDir": {}},
            {"name": "selftest-issuer", "secret": {"defaultMode": 0o440, "secretName": "veen-selftest-issuer"}},
        ],
    }
    return {
        "activeDeadlineSeconds": _SELFTEST_SEC,
        "backoffLimit": 1,
        "template": {"metadata": _template_metadata(universe, tenant, "selftest", "selftest", {}), "spec": pod},
        "ttlSecondsAfterFinished": _KEEP_JOB_SEC,
    }


# --- commands ----------------------------------------------------------------------------------------------------


def cli_job(
    universe: Universe,
    tenant: Tenant | None,
    facts: HubFacts,
    action: str,
    words: Sequence[str],
    *,
    secret: str,
    identity: str,
    has_cap: bool = False,
) -> Manifest:
    """Return a Job for one command at the hub of a namespace, with a keystore from a Secret (spec-4 §7).

    The image has no shell to copy the keystore: it is read where it is mounted. The client's state is in an emptyDir
    and new with each Job, so before sending it reads the last number of its key.
    """
    environment = {
        "HOME": _WORK_DIR,
        "VEEN_IDENTITY": identity,
        "VEEN_ROLE": "cli",
        "VEEN_UNIVERSE_ID": universe.id,
        "XDG_DATA_HOME": "/secrets",
    }
    if tenant is not None:
        environment["VEEN_TENANT_ID"] = tenant.id
    at = ["--hub", hub_url(tenant, inside=True), "--pin", facts.pin, "--insecure-http"]
    at += ["--wait", str(_SELFTEST_WAIT_SEC)]
    image = universe.image("veen-cli")
    arguments = [action, *words, *(["--cap", "/secrets/cap.cbor"] if has_cap else []), *at]
    containers = {"cli": arguments}
    if action == "send":
        containers["resync"] = ["resync", words[0], *at]
    parts = {
        name: _container(name, image, ["veen-cli"], each, environment) for name, each in sorted(containers.items())
    }
    for container in parts.values():
        container["volumeMounts"] += [
            {"mountPath": _WORK_DIR, "name": "work"},
            {"mountPath": "/secrets", "name": "keystore", "readOnly": True},
        ]
    keys = {name: f"veen/identities/{identity}/{name}" for name in ("identity_card", "keystore.enc")}
    items = keys | ({"cap.cbor": "cap.cbor"} if has_cap else {})
    pod = _pod(parts["cli"]) | {
        "restartPolicy": "Never",
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "work", "emptyDir": {}},
            {
                "name": "keystore",
                "secret": {
                    "defaultMode": 0o440,
                    "items": [{"key": key, "path": path} for key, path in sorted(items.items())],
                    "secretName": secret,
                },
            },
        ],
    }
    if "resync" in parts:
        pod["initContainers"] = [parts["resync"]]
    spec = {
        "activeDeadlineSeconds": _SELFTEST_SEC,
        "backoffLimit": 0,  # a second try could send twice
        "template": {"metadata": _template_metadata(universe, tenant, "cli", "cli", {}), "spec": pod},
        "ttlSecondsAfterFinished": _KEEP_JOB_SEC,
    }
    return _object("batch/v1", "Job", f"veen-cli-{action}", universe, tenant, "cli", spec=spec)


# --- bridges -----------------------------------------------------------------------------------------------------


def _bridge_objects(universe: Universe, bridge: Bridge, facts: Mapping[str, HubFacts]) -> Iterator[Manifest]:
    tenant = None if bridge.tenant is None else universe.tenant(bridge.tenant)
    ends = {end: None if end == "authority" else universe.tenant(end) for end in (bridge.source, bridge.target)}
    name = f"veen-bridge-{bridge.name}"
    pins = {
        f"{side}_pin": facts[namespace_of(ends[end])].pin
        for side, end in (("source", bridge.source), ("target", bridge.target))
    }
    yield _object("v1", "ConfigMap", f"{name}-config", universe, tenant, "bridge", data=pins)
    environment: Manifest = {"VEEN_ROLE": "bridge", "VEEN_UNIVERSE_ID": universe.id, "HOME": _WORK_DIR}
    if tenant is not None:
        environment["VEEN_TENANT_ID"] = tenant.id
    arguments = [
        f"--source-url={hub_url(ends[bridge.source])}",
        f"--target-url={hub_url(ends[bridge.target])}",
        f"--streams={','.join(bridge.streams)}",
        f"--source-pin={pins['source_pin']}",
        f"--target-pin={pins['target_pin']}",
        "--keys=/secrets",
    ]
    container = _container("bridge", universe.image("veen-bridge"), ["veen-bridge"], arguments, environment)
    container["volumeMounts"] += [
        {"mountPath": _WORK_DIR, "name": "work"},
        {"mountPath": "/secrets", "name": "bridge-keys", "readOnly": True},
    ]
    pod = _pod(container) | {
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "work", "emptyDir": {}},
            {"name": "bridge-keys", "secret": {"defaultMode": 0o440, "secretName": f"{name}-keys"}},
        ],
        "terminationGracePeriodSeconds": _GRACE_SEC,
    }
    match = _selector("bridge", tenant) | {"veen.io/bridge": bridge.name}
    metadata = _template_metadata(universe, tenant, "bridge", "bridge", {})
    metadata["labels"] |= {"veen.io/bridge": bridge.name}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": match},
        "strategy": {"type": "Recreate"},
        "template": {"metadata": metadata, "spec": pod},
    }
    yield _object("apps/v1", "Deployment", name, universe, tenant, "bridge", spec=spec)


# --- cluster-wide ------------------------------------------------------------------------------------------------


def cluster_objects(universe: Universe) -> Iterator[Manifest]:
    """Yield the objects that an administrator applies once: the operator's account and the limits of its rights
    (D-144).

    The operator may do everything with Namespaces, and create RoleBindings; RBAC has no prefixes of names, so policies
    add them. Its rights inside a namespace come from the RoleBinding there, which it creates itself.
    """
    labels = _PART_OF | {"app.kubernetes.io/component": "operator"}
    everything = ["create", "delete", "get", "list", "patch", "update", "watch"]
    yield _namespace(universe, None)
    yield {
        "apiVersion": "v1",
        "automountServiceAccountToken": False,
        "kind": "ServiceAccount",
        "metadata": {"labels": labels, "name": OPERATOR, "namespace": AUTHORITY_NAMESPACE},
    }
    yield _cluster_role(
        OPERATOR,
        labels,
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": [verb for verb in everything if verb != "update"]},
        {"apiGroups": [_RBAC], "resources": ["rolebindings"], "verbs": ["create", "get", "patch"]},
        {
            "apiGroups": [_RBAC],
            "resourceNames": [OPERATOR_NAMESPACE],
            "resources": ["clusterroles"],
            "verbs": ["bind"],
        },
    )
    core = ["configmaps", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"]
    yield _cluster_role(
        OPERATOR_NAMESPACE,
        labels,
        {"apiGroups": [""], "resources": core, "verbs": everything},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": everything},
        {"apiGroups": ["batch"], "resources": ["cronjobs", "jobs"], "verbs": everything},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": everything},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": everything},
    )
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"labels": labels, "name": OPERATOR},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": OPERATOR},
        "subjects": [_OPERATOR_ACCOUNT],
    }
    name = "request.operation == 'DELETE' ? request.name : object.metadata.name"
    level = "pod-security.kubernetes.io/enforce"
    yield from _policy(
        f"{OPERATOR}-namespaces", labels, {"": "namespaces"}, ["CREATE", "DELETE", "UPDATE"],
        [
            (f"({name}).startsWith('veen-')", "a VEEN namespace begins with veen-"),
            (
                "request.operation == 'DELETE' || (has(object.metadata.labels) && "
                f"'{level}' in object.metadata.labels && object.metadata.labels['{level}'] == 'restricted')",
                "a VEEN namespace enforces the pod security level restricted",
            ),
        ],
    )  # fmt: skip
    account = _OPERATOR_ACCOUNT
    yield from _policy(
        f"{OPERATOR}-bindings", labels, {_RBAC: "rolebindings"}, ["CREATE", "UPDATE"],
        [
            ("request.namespace.startsWith('veen-')", "a VEEN namespace begins with veen-"),
            (
                f"object.roleRef.kind == 'ClusterRole' && object.roleRef.name == '{OPERATOR_NAMESPACE}'",
                f"the operator binds ClusterRole {OPERATOR_NAMESPACE} only",
            ),
            (
                "has(object.subjects) && object.subjects.size() == 1 && object.subjects.all(subject, "
                f"subject.kind == '{account['kind']}' && subject.name == '{account['name']}' && "
                f"has(subject.namespace) && subject.namespace == '{account['namespace']}')",
                "the operator binds itself only",
            ),
        ],
    )  # fmt: skip


_RBAC: Final = "rbac.authorization.k8s.io"
_OPERATOR_ACCOUNT: Final = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": AUTHORITY_NAMESPACE}


def _cluster_role(name: str, labels: Mapping[str, str], *rules: Manifest) -> Manifest:
    metadata = {"labels": labels, "name": name}
    return {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)}


def _operator_binding(universe: Universe, tenant: Tenant | None) -> Manifest:
    """Return the operator's rights inside the namespace of a hub."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"labels": _labels(universe, tenant, "hub"), "name": OPERATOR, "namespace": namespace_of(tenant)},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": OPERATOR_NAMESPACE},
        "subjects": [_OPERATOR_ACCOUNT],
    }


def _policy(
    name: str,
    labels: Mapping[str, str],
    resource: Mapping[str, str],
    operations: Sequence[str],
    validations: Sequence[tuple[str, str]],
) -> Iterator[Manifest]:
    """Yield an admission policy over the operator's changes of one resource, and its binding."""
    user = f"system:serviceaccount:{AUTHORITY_NAMESPACE}:{OPERATOR}"
    ((group, plural),) = resource.items()
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": [plural],
        "scope": "*",
    }
    yield {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"labels": labels, "name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConditions": [{"expression": f"request.userInfo.username == '{user}'", "name": "operator"}],
            # With every default of the API server: the field is atomic, so a manager that left one out would conflict
            # with another one that applied the same bytes.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [rule],
            },
            "validations": [{"expression": expression, "message": message} for expression, message in validations],
        },
    }
    yield {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"labels": labels, "name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


def _namespace(universe: Universe, tenant: Tenant | None) -> Manifest:
    labels = _labels(universe, tenant, "hub") | {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"labels": labels, "name": namespace_of(tenant)}}


# --- parts -------------------------------------------------------------------------------------------------------


def _hub_name(tenant: Tenant | None) -> str:
    return "veen-authority-hub" if tenant is None else "veen-hub"


def _config_name(tenant: Tenant | None) -> str:
    return "veen-authority-config" if tenant is None else "veen-hub-config"


def _data_name(tenant: Tenant | None) -> str:
    return "veen-authority-data" if tenant is None else "veen-hub-data"


def _labels(universe: Universe, tenant: Tenant | None, component: str, role: str | None = None) -> dict[str, str]:
    hub_role = "authority" if tenant is None else "tenant"
    labels = _PART_OF | {
        "app.kubernetes.io/component": component,
        "veen.io/role": role or (hub_role if component == "hub" else component),
        "veen.io/universe-id": universe.id,
    }
    return labels if tenant is None else labels | {"veen.io/tenant-id": tenant.id}


def _selector(component: str, tenant: Tenant | None) -> dict[str, str]:
    """Return the selector of a component. Selectors cannot change later, so they contain neither version nor
    universe.
    """
    role = component if component != "hub" else "authority" if tenant is None else "tenant"
    return {"app.kubernetes.io/component": component, "veen.io/role": role}


def _annotations(universe: Universe, profile: str) -> dict[str, str]:
    return {"veen.io/profile": profile, "veen.io/version": universe.version}


def _template_metadata(
    universe: Universe, tenant: Tenant | None, component: str, role: str, marks: Mapping[str, str]
) -> Manifest:
    return {
        "annotations": {**_annotations(universe, role), **marks},
        "labels": _labels(universe, tenant, component, role),
    }


def _object(
    api: str,
    kind: str,
    name: str,
    universe: Universe,
    tenant: Tenant | None,
    component: str,
    *,
    marks: Mapping[str, str] | None = None,
    **rest: Any,
) -> Manifest:
    labels = _labels(universe, tenant, component)
    annotations = {**_annotations(universe, labels["veen.io/role"]), **(marks or {})}
    metadata = {"annotations": annotations, "labels": labels, "name": name, "namespace": namespace_of(tenant)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


_LOG: Final[Mapping[str, str]] = {"VEEN_LOG_FORMAT": "json"}  # spec-4 §10.3


def _container(
    name: str, image: str, command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]
) -> Manifest:
    return {
        "args": list(arguments),
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in sorted({**_LOG, **environment}.items())],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "name": name,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}],  # noqa: S108 - a directory of the pod
    }


def container_security() -> Manifest:
    """Return the settings that the Pod Security level `restricted` demands of a container, with a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_security() -> Manifest:
    """Return the settings that the level `restricted` demands of a pod."""
    return {
        "fsGroup": USER_ID,
        "runAsGroup": USER_ID,
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod(container: Manifest) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "containers": [container],
        "enableServiceLinks": False,  # else the pod has variables VEEN_HUB_…, which settings are named like as well
        "securityContext": pod_security() | {"fsGroupChangePolicy": "OnRootMismatch"},
        "serviceAccountName": "veen",
    }


def _probe(path: str, **rest: int) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}, **rest}
