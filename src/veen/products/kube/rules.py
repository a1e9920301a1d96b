"""The rules of spec-4 over manifests of any origin; each fault has a code and names its object.

They check the objects, not their origin: hand-written and edited YAML is checked, too.

The schemas of Kubernetes over manifests, strictly and without a network (`kubernetes-validate`, extra `kube`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from veen.core.catalogue import install_hint
from veen.core.errors import StatedError
from veen.products.kube.objects import AUTHORITY_NAMESPACE, OPERATOR, OPERATOR_NAMESPACE, Manifest

_TENANT: Final = re.compile(r"veen-tenant-[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABELLED: Final = frozenset({"Pod", "Deployment", "StatefulSet", "Job", "CronJob", "Service"})
_WORKLOADS: Final = frozenset({"Deployment", "StatefulSet", "Job", "CronJob"})
_COMPONENTS: Final = frozenset({"hub", "bridge", "cli", "selftest"})
_ROLES: Final = frozenset({"authority", "tenant", "bridge", "selftest", "cli"})
_CLUSTER_WIDE: Final = frozenset(
    {"Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
)


@dataclass(frozen=True, slots=True, order=True)
class ManifestFault:
    """A rule that an object breaks."""

    code: str
    place: str  # Kind namespace/name
    what: str


Faults = Iterator[tuple[str, str]]  # place, what


class _Manifests:
    """Objects by kind, namespace and name."""

    def __init__(self, objects: Sequence[Manifest], secrets: frozenset[tuple[str, str]]) -> None:
        self.objects, self.secrets = objects, secrets
        self._names = {(o["kind"], _namespace(o), o["metadata"]["name"]) for o in objects}

    def of(self, *kinds: str) -> Iterator[Manifest]:
        return (o for o in self.objects if o["kind"] in kinds)

    def has(self, kind: str, namespace: str, name: str) -> bool:
        return (kind, namespace, name) in self._names

    def hubs(self) -> Iterator[tuple[Manifest, Manifest]]:
        """Yield each workload that runs a hub, and its pod template."""
        for o in self.of("Deployment", "StatefulSet"):
            template = _template(o)
            if template["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "hub":
                yield o, template


def check_manifests(
    objects: Sequence[Any], *, secrets: frozenset[tuple[str, str]] = frozenset()
) -> list[ManifestFault]:
    """Return all faults, sorted. `secrets`: (namespace, name) of Secrets that exist outside of the objects."""
    faults = []
    readable: list[Manifest] = []
    for number, o in enumerate(objects, start=1):
        if isinstance(o, dict) and _is_named(o):
            readable.append(o)
        else:
            faults.append(ManifestFault("K.OBJECT", f"document {number}", "not an object of Kubernetes with a name"))
    world = _Manifests(readable, secrets)
    for code, (_, rule) in RULES.items():
        try:
            faults += [ManifestFault(code, place, what) for place, what in rule(world)]
        except (
            AttributeError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
        ) as exc:  # hand-written YAML
            what = f"the rule cannot be applied: {type(exc).__name__}: {exc}; check the schemas first"
            faults.append(ManifestFault(code, "all documents", what))
    return sorted(set(faults))


def _containers(pod: Manifest) -> list[Manifest]:
    """Return all containers of a pod, including init containers."""
    return [*pod["containers"], *pod.get("initContainers", ())]


def _is_named(o: Manifest) -> bool:
    metadata = o.get("metadata")
    return isinstance(o.get("kind"), str) and isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


# --- rules -------------------------------------------------------------------------------------------------------


def _namespaces(world: _Manifests) -> Faults:
    for o in world.objects:
        name = o["metadata"]["name"] if o["kind"] == "Namespace" else _namespace(o)
        if o["kind"] in _CLUSTER_WIDE - {"Namespace"}:
            continue
        if name != AUTHORITY_NAMESPACE and not _TENANT.fullmatch(name):
            yield _place(o), f"namespace {name!r} is neither {AUTHORITY_NAMESPACE} nor veen-tenant-ID"


def _labels(world: _Manifests) -> Faults:
    for o in world.of(*_LABELLED):
        yield from _label_faults(_place(o), o["metadata"].get("labels", {}), _namespace(o))
        if o["kind"] in _WORKLOADS:
            yield from _label_faults(
                f"{_place(o)}, its pods", _template(o)["metadata"].get("labels", {}), _namespace(o)
            )


def _label_faults(place: str, labels: Mapping[str, str], namespace: str) -> Faults:
    if labels.get("app.kubernetes.io/part-of") != "veen":
        yield place, "label app.kubernetes.io/part-of is not veen"
    if labels.get("app.kubernetes.io/component") not in _COMPONENTS:
        yield place, f"label app.kubernetes.io/component is not one of {', '.join(sorted(_COMPONENTS))}"
    if labels.get("veen.io/role") not in _ROLES:
        yield place, f"label veen.io/role is not one of {', '.join(sorted(_ROLES))}"
    if not labels.get("veen.io/universe-id"):
        yield place, "label veen.io/universe-id is missing"
    tenant = namespace.removeprefix("veen-tenant-") if namespace != AUTHORITY_NAMESPACE else None
    if tenant is not None and labels.get("veen.io/tenant-id") != tenant:
        yield place, f"label veen.io/tenant-id is not {tenant}"


def _one_authority(world: _Manifests) -> Faults:
    if all(_component(o) == "operator" or o["kind"] == "Namespace" for o in world.objects):
        return  # the objects an administrator applies once, not a universe
    for kind, name in (
        ("StatefulSet", "veen-authority-hub"), ("Service", "veen-authority"), ("ConfigMap", "veen-authority-config"),
        ("PersistentVolumeClaim", "veen-authority-data"),
    ):  # fmt: skip
        count = sum(_namespace(o) == AUTHORITY_NAMESPACE and o["metadata"]["name"] == name for o in world.of(kind))
        if count != 1:
            yield f"{kind} {AUTHORITY_NAMESPACE}/{name}", f"there are {count} of it, expected one"


def _one_hub_per_tenant(world: _Manifests) -> Faults:
    for namespace in (o["metadata"]["name"] for o in world.of("Namespace")):
        if namespace == AUTHORITY_NAMESPACE:
            continue
        hubs = [o for o, _ in world.hubs() if _namespace(o) == namespace]
        if len(hubs) != 1:
            yield f"Namespace {namespace}", f"it has {len(hubs)} hubs, expected one"
        for kind, name in (("Service", "veen-hub"), ("ConfigMap", "veen-hub-config"), ("Job", "veen-selftest-core")):
            if not world.has(kind, namespace, name):
                yield f"Namespace {namespace}", f"{kind} {name} is missing"


def _one_writer(world: _Manifests) -> Faults:
    """Check that each hub has one pod: a second one would wait for the lock forever, or write a second history."""
    for o, _ in world.hubs():
        if o["spec"].get("replicas") != 1:
            yield _place(o), "replicas is not 1"
        if o["kind"] == "Deployment" and o["spec"].get("strategy", {}).get("type") != "Recreate":
            yield _place(o), "strategy is not Recreate: the next pod would start before the last one ended"


def _command(world: _Manifests) -> Faults:
    for o, template in world.hubs():
        (container,) = template["spec"]["containers"][:1]
        role = "authority" if _namespace(o) == AUTHORITY_NAMESPACE else "tenant"
        if container.get("command") != ["veen-hub"]:
            yield _place(o), "command is not veen-hub"
        for argument in (f"--profile={role}", "--config=/etc/veen/hub.yaml", "--data-dir=/var/lib/veen"):
            if argument not in container.get("args", ()):
                yield _place(o), f"argument {argument} is missing"
        environment = {entry["name"]: entry.get("value") for entry in container.get("env", ())}
        if environment.get("VEEN_ROLE") != role:
            yield _place(o), f"VEEN_ROLE is not {role}"
        needed = ["VEEN_UNIVERSE_ID", *(["VEEN_TENANT_ID"] if role == "tenant" else ["VEEN_LOG_LEVEL"])]
        for name in needed:
            if not environment.get(name):
                yield _place(o), f"{name} is not set"


def _probes(world: _Manifests) -> Faults:
    for o, template in world.hubs():
        (container,) = template["spec"]["containers"][:1]
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            if container.get(probe, {}).get("httpGet", {}).get("path") != path:
                yield _place(o), f"{probe} does not ask {path}"


def _storage(world: _Manifests) -> Faults:
    """Check volumes: an authority keeps its log; a hub with its own key and a blank volume would convict itself
    (D-121).
    """
    for o in world.of("PersistentVolumeClaim"):
        if o["spec"].get("accessModes") != ["ReadWriteOnce"]:
            yield _place(o), "accessModes is not ReadWriteOnce"
    for o, template in world.hubs():
        volumes: Sequence[Manifest] = template["spec"].get("volumes", ())
        data: Manifest = next((volume for volume in volumes if volume["name"] == "veen-data"), {})
        if o["spec"].get("volumeClaimTemplates"):
            yield _place(o), "volumeClaimTemplates name the claim otherwise; mount it by claimName"
        if "emptyDir" in data:
            if _namespace(o) == AUTHORITY_NAMESPACE:
                yield _place(o), "an authority on emptyDir loses its log with its pod"
            elif "identity: ephemeral" not in _config_of(world, o, template):
                yield _place(o), "emptyDir without identity: ephemeral: the same key would sign a second history"
        elif "persistentVolumeClaim" not in data:
            yield _place(o), "volume veen-data is neither a claim nor emptyDir"


def _config_of(world: _Manifests, hub: Manifest, template: Manifest) -> str:
    names = [v["configMap"]["name"] for v in template["spec"].get("volumes", ()) if "configMap" in v]
    for o in world.of("ConfigMap"):
        if _namespace(o) == _namespace(hub) and o["metadata"]["name"] in names:
            return str(o.get("data", {}).get("hub.yaml", ""))
    return ""


def _config(world: _Manifests) -> Faults:
    for o, template in world.hubs():
        config = _config_of(world, o, template)
        needed = ["listen:", "keys_dir:"]
        needed += (
            ["authority_id:"] if _namespace(o) == AUTHORITY_NAMESPACE else ["authority_url:", "hub_profile: tenant"]
        )
        for key in needed:
            if key not in config:
                yield _place(o), f"hub.yaml does not say {key.rstrip(':')}"


def _pod_security(world: _Manifests) -> Faults:
    for o in world.of(*_WORKLOADS):
        pod = _template(o)["spec"]
        if pod.get("automountServiceAccountToken") is not False:
            yield _place(o), "pods get a token of the API server; automountServiceAccountToken is not false"
        if not pod.get("securityContext", {}).get("runAsNonRoot"):
            yield _place(o), "runAsNonRoot is not true"
        if pod.get("securityContext", {}).get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield _place(o), "seccompProfile is not RuntimeDefault"
        for container in _containers(pod):
            context = container.get("securityContext", {})
            if context.get("allowPrivilegeEscalation") is not False:
                yield _place(o), f"container {container['name']}: allowPrivilegeEscalation is not false"
            if not context.get("readOnlyRootFilesystem"):
                yield _place(o), f"container {container['name']}: the root file system can be written to"
            if context.get("capabilities", {}).get("drop") != ["ALL"]:
                yield _place(o), f"container {container['name']}: not all capabilities are dropped"


def _secrets_read_only(world: _Manifests) -> Faults:
    for o in world.of(*_WORKLOADS):
        pod = _template(o)["spec"]
        secret = {volume["name"] for volume in pod.get("volumes", ()) if "secret" in volume}
        for container in _containers(pod):
            for mount in container.get("volumeMounts", ()):
                if mount["name"] in secret and not mount.get("readOnly"):
                    yield _place(o), f"Secret volume {mount['name']} is not mounted read-only"
            for entry in container.get("env", ()):
                if "secretKeyRef" in entry.get("valueFrom", {}):
                    yield _place(o), f"variable {entry['name']} holds a secret; mount it as a file"
    for o in world.of("Secret"):
        if not o.get("immutable"):
            yield _place(o), "it is not immutable: keys are made once"


def _mounts_exist(world: _Manifests) -> Faults:
    for o in world.of(*_WORKLOADS):
        namespace, pod = _namespace(o), _template(o)["spec"]
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for container in _containers(pod):
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    yield _place(o), f"volume {mount['name']} is mounted and not defined"
        for volume in volumes.values():
            for key, kind, field in (
                ("configMap", "ConfigMap", "name"),
                ("secret", "Secret", "secretName"),
                ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ):
                if key not in volume or volume[key].get("optional"):
                    continue
                name = volume[key][field]
                if not world.has(kind, namespace, name) and (namespace, name) not in world.secrets:
                    yield _place(o), f"{kind} {name} is mounted and not there"


def _selectors(world: _Manifests) -> Faults:
    pods = [(_namespace(o), _template(o)) for o in world.of(*_WORKLOADS)]
    for o in world.of("Deployment", "StatefulSet"):
        if not _matches(o["spec"]["selector"].get("matchLabels", {}), _template(o)["metadata"].get("labels", {})):
            yield _place(o), "its selector does not match its own pods"
    for o in world.of("Service"):
        selector = o["spec"].get("selector", {})
        chosen = [
            template
            for namespace, template in pods
            if namespace == _namespace(o) and _matches(selector, template["metadata"].get("labels", {}))
        ]
        if not chosen:
            yield _place(o), "it selects no pods"
        for port in o["spec"].get("ports", ()):
            names = {p.get("name") for t in chosen for c in t["spec"]["containers"] for p in c.get("ports", ())}
            if chosen and port.get("targetPort") not in names:
                yield _place(o), f"no pod has a port {port.get('targetPort')!r}"


def _network_access(world: _Manifests) -> Faults:
    """Check that each hub has a NetworkPolicy that admits bridges and self-tests, but not everybody."""
    for o, template in world.hubs():
        labels = template["metadata"].get("labels", {})
        policies = [
            policy["spec"]
            for policy in world.of("NetworkPolicy")
            if _namespace(policy) == _namespace(o)
            and _matches(policy["spec"].get("podSelector", {}).get("matchLabels", {}), labels)
        ]
        if not policies:
            yield _place(o), "no NetworkPolicy guards its pods"
        callers = [caller for spec in policies for rule in spec.get("ingress", ()) for caller in rule.get("from", [{}])]
        if {} in callers:
            yield _place(o), "its NetworkPolicy lets everybody in"
        allowed = {
            value
            for caller in callers
            for expression in caller.get("podSelector", {}).get("matchExpressions", ())
            if expression.get("key") == "veen.io/role"
            for value in expression.get("values", ())
        }
        for role in ("bridge", "selftest"):
            if policies and role not in allowed:
                yield _place(o), f"its NetworkPolicy does not let {role} pods in"


def _selftest_reaches(world: _Manifests) -> Faults:
    """Check that self-tests use the Service of their own namespace."""
    for o in world.of("Job"):
        if not o["metadata"]["name"].startswith("veen-selftest"):
            continue
        service = "veen-authority" if _namespace(o) == AUTHORITY_NAMESPACE else "veen-hub"
        arguments = _template(o)["spec"]["containers"][0].get("args", ())
        if not any(str(argument).startswith(f"http://{service}:") for argument in arguments):
            yield _place(o), f"it does not name its hub as http://{service}:PORT"
        if not world.has("Service", _namespace(o), service):
            yield _place(o), f"Service {service} is not there"


def _operator(world: _Manifests) -> Faults:
    """Check that the operator has no rights outside of VEEN namespaces, and that nobody else has its rights inside."""
    account = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": AUTHORITY_NAMESPACE}
    for kind, role in (("ClusterRoleBinding", OPERATOR), ("RoleBinding", OPERATOR_NAMESPACE)):
        for o in world.of(kind):
            if (o["roleRef"].get("kind"), o["roleRef"].get("name")) != ("ClusterRole", role):
                yield _place(o), f"it binds another role than ClusterRole {role}"
            if o.get("subjects") != [account]:
                yield _place(o), f"its subject is not ServiceAccount {AUTHORITY_NAMESPACE}/{OPERATOR} alone"


RULES: Final[Mapping[str, tuple[str, Callable[[_Manifests], Faults]]]] = {
    "K.NAMESPACE": ("objects are in veen-system or veen-tenant-ID", _namespaces),
    "K.LABELS": ("workloads, pods and services carry the labels of the profile", _labels),
    "K.AUTHORITY": ("there is exactly one authority", _one_authority),
    "K.TENANT": ("a tenant namespace has exactly one hub and its companions", _one_hub_per_tenant),
    "K.WRITER": ("a data directory never has two pods", _one_writer),
    "K.COMMAND": ("hubs are started as the profile says", _command),
    "K.CONFIG": ("hub.yaml has the keys that the profile demands", _config),
    "K.PROBES": ("liveness asks /healthz, readiness asks /readyz", _probes),
    "K.STORAGE": ("logs are kept, or belong to hubs that may lose them", _storage),
    "K.RESTRICTED": ("pods run without privileges", _pod_security),
    "K.SECRETS": ("Secrets are files that nobody writes", _secrets_read_only),
    "K.MOUNTS": ("what is mounted is there", _mounts_exist),
    "K.SELECTORS": ("selectors and ports fit", _selectors),
    "K.NETWORK": ("a NetworkPolicy guards each hub", _network_access),
    "K.SELFTEST": ("self-tests reach their hub by its Service", _selftest_reaches),
    "K.OPERATOR": ("the operator has rights in VEEN namespaces only", _operator),
}


# --- reading objects ---------------------------------------------------------------------------------------------


def _namespace(o: Manifest) -> str:
    return str(o["metadata"].get("namespace", ""))


def _component(o: Manifest) -> Any:
    return o["metadata"].get("labels", {}).get("app.kubernetes.io/component")


def _place(o: Manifest) -> str:
    namespace = _namespace(o)
    return f"{o['kind']} {namespace}/{o['metadata']['name']}" if namespace else f"{o['kind']} {o['metadata']['name']}"


def _template(o: Manifest) -> Manifest:
    spec: Any = o["spec"]
    if o["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Manifest = spec["template"]
    return template


def _matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def find_mounted_secrets(objects: Sequence[Any]) -> frozenset[tuple[str, str]]:
    """Return (namespace, name) of the Secrets that pods mount."""
    mounted = set()
    for o in objects:
        try:
            for volume in _template(o)["spec"].get("volumes", ()):
                if "secret" in volume:
                    mounted.add((_namespace(o), str(volume["secret"]["secretName"])))
        except (AttributeError, KeyError, TypeError):  # not a workload; other rules report its fault
            continue
    return frozenset(mounted)


VERSIONS: Final = ("1.31", "1.34", "1.37")


class ValidatorMissing(StatedError):
    """The schemas of Kubernetes are not installed."""

    hint = f"{install_hint('kube')} `--no-schemas` checks the rules of the profile only."


def check_schemas(objects: Sequence[Manifest], versions: Sequence[str] = VERSIONS) -> list[ManifestFault]:
    """Return the faults that the API servers of these versions would refuse: unknown, missing and wrong fields."""
    try:
        import kubernetes_validate
    except ImportError as exc:
        raise ValidatorMissing("the package kubernetes-validate is not installed") from exc
    faults = []
    for version in versions:
        for number, o in enumerate(objects, start=1):
            try:
                kubernetes_validate.validate(o, version, strict=True)
            except kubernetes_validate.ValidationError as exc:
                faults.append(ManifestFault("K.SCHEMA", _place_of(o, number), f"{version}: {_words(exc)}"))
            except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as exc:
                faults.append(
                    ManifestFault("K.SCHEMA", _place_of(o, number), f"{version}: no schema for this kind: {exc}")
                )
    return sorted(set(faults))


def _place_of(o: Any, number: int) -> str:
    if not isinstance(o, dict) or not isinstance(o.get("metadata"), dict):
        return f"document {number}"
    metadata = o["metadata"]
    return f"{o.get('kind')} {'/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))}"


def _words(exc: Any) -> str:
    path = ".".join(str(part) for part in getattr(exc, "path", ()))
    message = str(getattr(exc, "message", exc)).splitlines()[0]
    return f"{path}: {message}" if path else message
