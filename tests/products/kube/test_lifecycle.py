"""What the commands of a universe's later life do on disk and print, without a cluster (001 spec-4 §7, §11)."""

import base64
import json
import stat

import pytest
import yaml
from tests.cli.hubprocess import report, veen

from veen.cli.shared.output import Exit
from veen.products.kube.cluster import json_in
from veen.products.kube.rules import check_manifests, check_schemas
from veen.products.kube.secrets import NamespaceKeys
from veen.products.kube.universe import Tenant


@pytest.fixture
def file(tmp_path):
    """A universe of an authority, a durable and a disposable tenant."""
    path = tmp_path / "universe.toml"
    report("kube", "init", "--file", path)
    report("kube", "tenant", "new", "acme-prod", "--storage", "1Gi", "--file", path)
    report("kube", "tenant", "new", "team1-dev", "--file", path)
    return path


def objects(file, *options):
    return [o for o in yaml.safe_load_all(report("kube", "render", *options, "--file", file)["yaml"]) if o]


def hub(file, namespace):
    return next(
        o
        for o in objects(file)
        if o["kind"] in ("Deployment", "StatefulSet") and o["metadata"]["namespace"] == namespace
    )


def keys_secret(manifest):
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    return next(v["secret"]["secretName"] for v in volumes if v["name"] == "veen-keys")


def test_a_rotation_puts_both_keys_into_a_second_secret_that_is_mounted(file):
    keys = file.parent / "keys" / "veen-tenant-acme-prod"
    before = report("kube", "tenant", "list", "--file", file)["tenants"][0]["pin"]
    (old,) = (keys / "hub").glob("*.key")
    done = report("kube", "rotate-keys", "acme-prod", "--file", file)
    assert (done["secret"], done["valid_from"]) == ("veen-hub-keys-next", None)
    assert keys_secret(hub(file, "veen-tenant-acme-prod")) == "veen-hub-keys-next"
    (secret,) = [o for o in objects(file, "--secrets") if o["metadata"]["name"] == "veen-hub-keys-next"]
    assert len(secret["data"]) == 2  # no birth certificate: the log has begun
    assert base64.b64decode(secret["data"][old.name]) == old.read_bytes()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (keys / "hub").iterdir())
    assert report("kube", "tenant", "list", "--file", file)["tenants"][0]["pin"] == before
    assert check_manifests([*objects(file), *objects(file, "--secrets")]) == []
    again = report("kube", "rotate-keys", "acme-prod", "--file", file)  # it was cut off: no third key
    assert again == done
    assert len(list((keys / "hub").glob("*.key"))) == 2


@pytest.mark.parametrize("step", ["key", "facts"])
def test_a_rotation_that_is_cut_off_anywhere_makes_one_key(file, monkeypatch, step):
    """The command again goes on with the same key, and facts.json is whole before and after."""
    keys = NamespaceKeys(file.parent / "keys", "veen-tenant-acme-prod")
    tenant = Tenant(id="acme-prod", storage="1Gi")
    before = keys.facts()

    def cut_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NamespaceKeys, "drop_birth" if step == "key" else "write_facts", cut_off)
        with pytest.raises(KeyboardInterrupt):
            keys.begin_rotation(tenant)
    assert keys.facts() == before
    public = keys.begin_rotation(tenant)
    assert keys.begin_rotation(tenant) == public
    assert len(list((keys.directory / "hub").glob("*.key"))) == 2
    assert keys.facts().keys_secret == "veen-hub-keys-next"
    assert not list(keys.directory.glob(".*"))
    assert not (keys.directory / "next.seed").exists()


def test_each_rotation_has_a_secret_of_its_own_as_secrets_never_change(file):
    keys = file.parent / "keys" / "veen-system"
    assert report("kube", "rotate-keys", "authority", "--file", file)["secret"] == "veen-authority-keys-next"
    (keys / "next.pub").unlink()  # as it is when the hub has taken the key
    assert report("kube", "rotate-keys", "authority", "--file", file)["secret"] == "veen-authority-keys-next-2"
    assert keys_secret(hub(file, "veen-system")) == "veen-authority-keys-next-2"
    (secret,) = [o for o in objects(file, "--secrets") if o["metadata"]["name"] == "veen-authority-keys-next-2"]
    assert len(secret["data"]) == 3


def test_a_disposable_hub_is_not_rotated_by_a_secret(file):
    done = report("kube", "rotate-keys", "team1-dev", "--file", file, code=Exit.LOCAL)
    assert "disposable" in done["cause"]
    assert "pod" in done["hint"]
    assert report("kube", "rotate-keys", "nobody", "--file", file, code=Exit.LOCAL)["cause"].startswith("no tenant")


def test_a_destroyed_tenant_leaves_the_file_as_it_was_but_for_itself(file):
    text = file.read_text() + "# the last line\n"
    file.write_text(text.replace('id = "acme-prod"', 'id = "acme-prod"  # our best customer'))
    done = report("kube", "tenant", "destroy", "team1-dev", "--yes", "--file", file)
    assert done["pin"].startswith("root:ed25519:")
    assert "our best customer" in file.read_text()
    assert [row["tenant"] for row in report("kube", "tenant", "list", "--file", file)["tenants"]] == ["acme-prod"]
    assert not (file.parent / "keys" / "veen-tenant-team1-dev").exists()
    assert list((file.parent / "keys" / "destroyed").glob("veen-tenant-team1-dev-*/hub/*.key"))
    report("kube", "tenant", "destroy", "acme-prod", "--yes", "--file", file)
    assert report("kube", "tenant", "list", "--file", file)["tenants"] == []


def test_nobody_is_destroyed_without_a_word_or_under_a_bridge(file):
    before = file.read_text()
    assert veen("kube", "tenant", "destroy", "team1-dev", "--file", file, "--no-input").returncode == Exit.USAGE
    bridge = '[[bridges]]\nname = "core"\nsource = "authority"\ntarget = "acme-prod"\nstreams = ["core/*"]\n'
    file.write_text(before + bridge)
    done = report("kube", "tenant", "destroy", "acme-prod", "--yes", "--file", file, code=Exit.LOCAL)
    assert "bridge core" in done["message"]
    assert file.read_text() == before + bridge


@pytest.mark.req("K8S-13")
@pytest.mark.parametrize("action", ["send", "stream"])
def test_a_job_of_a_command_keeps_every_rule_and_mounts_its_keys_read_only(file, action):
    words = ["orders", "hello"] if action == "send" else ["orders", "--from", "3"]
    options = ("--secret", "writer", "--identity", "robot", "--cap", "--file", file)
    (job,) = yaml.safe_load_all(report("kube", "job", action, "acme-prod", *words, *options)["yaml"])
    assert job["metadata"]["name"] == f"veen-cli-{action}"
    assert check_schemas([job]) == []
    others = [*objects(file), *objects(file, "--secrets")]
    assert check_manifests([*others, job], secrets=frozenset({("veen-tenant-acme-prod", "writer")})) == []
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][: len(words) + 1] == [action, *words]
    (volume,) = [v["secret"] for v in pod["volumes"] if "secret" in v]
    assert {"key": "keystore.enc", "path": "veen/identities/robot/keystore.enc"} in volume["items"]
    assert [c["args"][0] for c in pod.get("initContainers", ())] == (["resync"] if action == "send" else [])


def test_an_init_container_with_privileges_is_a_fault(file):
    options = ("--secret", "writer", "--file", file)
    (job,) = yaml.safe_load_all(report("kube", "job", "send", "acme-prod", "orders", "x", *options)["yaml"])
    job["spec"]["template"]["spec"]["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert "K.RESTRICTED" in {fault.code for fault in check_manifests([job])}


@pytest.mark.parametrize("command", [("upgrade", "0.2.0"), ("job", "selftest", "acme-prod")])
def test_clusters_are_named_or_nothing_happens(file, command):
    before = file.read_text()
    done = veen("kube", *command, "--file", file)
    assert done.returncode == Exit.USAGE
    assert b"--kube-context" in done.stderr
    assert file.read_text() == before


def test_an_upgrade_to_what_is_no_tag_changes_nothing(file):
    before = file.read_text()
    done = report("kube", "upgrade", "no tag", "--kube-context", "nowhere", "--file", file, code=Exit.LOCAL)
    assert "image tag" in done["cause"]
    assert file.read_text() == before


def test_the_report_of_a_pod_is_read_among_its_notes():
    assert json_in('note: x\n{"a": [1]}\nnote: y\n') == {"a": [1]}
    assert json_in('{"a": 1} and more') == {"a": 1}
    start = '{"ts": "t", "level": "info", "component": "cli", "role": "cli", '
    line = f'{start}"record": {{"a": 1}}}}'
    assert json_in(f'{line}\n{start}"notice": "x"}}\nand more') == {"a": 1}
    end = f'{start}"summary": {{"failed": 0}}, "of": "checks"}}'
    assert json_in(f"{line}\n{line}\n{end}\n") == {"checks": [{"a": 1}, {"a": 1}], "failed": 0}
    assert json_in(f"{end}\n") == {"checks": [], "failed": 0}
    with pytest.raises(ValueError, match="one result"):
        json_in(f"{line}\n{line}\n")
    for text in ("", "nothing here", "\n{broken"):
        with pytest.raises(ValueError, match="Expect"):
            json_in(text)


def test_spark_gets_pod_templates_without_privileges_and_settings_that_name_them(file, tmp_path):
    """Rendered and checked; no cluster has run them."""
    out = tmp_path / "pods"
    options = ("--image", "registry.example/veen-spark:1", "--keys-secret", "readers", "--out", out, "--file", file)
    done = report("kube", "spark-pods", "acme-prod", *options)
    templates = [yaml.safe_load((out / name).read_text()) for name in ("driver.yaml", "executor.yaml")]
    named = [{**o, "metadata": {**o["metadata"], "name": "x", "namespace": "veen-tenant-acme-prod"}} for o in templates]
    assert check_schemas(named) == []
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": named[1]["metadata"]}
    job["spec"] = {"template": {"metadata": templates[1]["metadata"], "spec": templates[1]["spec"]}}
    secrets = frozenset({("veen-tenant-acme-prod", "readers")})
    assert check_manifests([*objects(file), *objects(file, "--secrets"), job], secrets=secrets) == []
    assert [o["spec"]["automountServiceAccountToken"] for o in templates] == [True, False]
    master = ("--master", "k8s://https://kube:6443", "--ship", "nothing", "--dry-run", "--json")
    planned = veen("spark", "submit", *master, *done["arguments"], "audit", "run", "s3://bucket/hub")
    words = json.loads(planned.stdout)["command"]
    assert f"spark.kubernetes.driver.podTemplateFile={out}/driver.yaml" in words
    assert "spark.kubernetes.namespace=veen-tenant-acme-prod" in words
