"""The Jobs that `veen kube` renders, run as they stand against hubs that run as they are rendered (K8S-14)."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.cli.homes import Cli
from tests.cli.hubprocess import HubProcess, report
from tests.cli.tree import commands
from tests.examples import spread

from veen.cli.shared.output import Exit
from veen.products.kube.cluster import json_in

PROGRAMS = {
    "veen-hub": "veen.cli.hub.group:veen_hub_main",
    "veen-selftest": "veen.products.selftest.commands:veen_selftest_main",
}


class Namespace:
    """One namespace of the rendered objects, with its files in a directory in place of mounts."""

    def __init__(self, root, objects, secrets, name):
        self.root = root / name
        self._objects = [o for o in objects if o["metadata"].get("namespace") == name]
        self._secrets = {o["metadata"]["name"]: o for o in secrets if o["metadata"]["namespace"] == name}

    def of(self, kind):
        return next(o for o in self._objects if o["kind"] == kind)

    def pod(self, kind):
        """The spec of the pods of a workload, its volumes as directories, and the paths of its mounts in them."""
        spec = self.of(kind)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        volumes = {volume["name"]: self._volume(kind, volume) for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        return container, mounts

    def _volume(self, kind, volume):
        path = self.root / kind / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            for name, data in self._secrets[volume["secret"]["secretName"]]["data"].items():
                (path / name).write_bytes(base64.b64decode(data))
                (path / name).chmod(0o600)
        if "configMap" in volume:
            for name, text in self.of("ConfigMap")["data"].items():
                (path / name).write_text(text)
        return path


def placed(text, mounts):
    """A path or option of a container with its mounts where they are here, the longest first."""
    for mount in sorted(mounts, key=len, reverse=True):
        head, separator, path = text.partition("=") if text.startswith("--") else ("", "", text)
        if path == mount or path.startswith(f"{mount}/"):
            return f"{head}{separator}{mounts[mount]}{path[len(mount) :]}"
    return text


def program(name):
    module, function = PROGRAMS[name].split(":")
    return [sys.executable, "-c", f"from {module} import {function}; {function}()"]


def hub_of(namespace, kind, universe_env):
    """The hub of a namespace, as it is rendered, but for its port and the place of its keys."""
    container, mounts = namespace.pod(kind)
    config = Path(placed("/etc/veen/hub.yaml", mounts))
    settings = yaml.safe_load(config.read_text())
    settings["listen"] = {"host": "127.0.0.1", "port": 0}
    settings["keys_dir"] = placed(settings["keys_dir"], mounts)
    settings["engine"] = {"workers": 0}
    settings.pop("authority_url", None)  # a name of the cluster; the hub would wait for it
    config.write_text(yaml.safe_dump(settings))
    arguments = [placed(argument, mounts) for argument in container["args"] if not argument.startswith("--data-dir")]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    data_dir = mounts["/var/lib/veen"]
    return HubProcess(data_dir, *arguments, program=program(container["command"][0]), env=universe_env | environment)


def run_job(namespace, url, env):
    """The Job as rendered; only the name of the Service is replaced by where the hub listens."""
    container, mounts = namespace.pod("Job")
    arguments = [url if argument.startswith("http://") else placed(argument, mounts) for argument in container["args"]]
    environment = {entry["name"]: placed(entry["value"], mounts) for entry in container["env"]}
    return subprocess.run(
        [*program(container["command"][0]), *arguments],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, **env, **environment, "TMPDIR": str(mounts["/tmp"])},  # noqa: S108 - of the container
    )


@pytest.fixture
def rendered(tmp_path):
    """A universe made by the commands, and its objects and Secrets."""
    file = tmp_path / "universe.toml"
    report("kube", "init", "--file", file)
    report("kube", "tenant", "new", "acme-prod", "--storage", "1Gi", "--file", file)
    report("kube", "tenant", "new", "team1-dev", "--file", file)
    objects = list(yaml.safe_load_all(report("kube", "render", "--file", file)["yaml"]))
    secrets = list(yaml.safe_load_all(report("kube", "render", "--secrets", "--file", file)["yaml"]))
    return [o for o in objects if o], [o for o in secrets if o and o["kind"] == "Secret"]


@pytest.mark.req("K8S-14", "K8S-21")
@pytest.mark.parametrize(
    ("name", "kind", "suite"),
    spread(
        [
            ("veen-system", "StatefulSet", "authority"),
            ("veen-tenant-acme-prod", "Deployment", "core"),
            ("veen-tenant-team1-dev", "Deployment", "core"),
        ],
        1,
    ),
)
def test_the_rendered_job_passes_at_the_rendered_hub_and_fails_at_another(tmp_path, rendered, name, kind, suite):
    env = Cli(tmp_path / "home").env
    objects, secrets = rendered
    namespace = Namespace(tmp_path / "cluster", objects, secrets, name)
    hub = hub_of(namespace, kind, env)
    try:
        for _ in range(2):  # a CronJob runs again, in the same stream
            done = run_job(namespace, hub.url, env)
            lines = [json.loads(line) for line in [*done.stdout.splitlines(), *done.stderr.splitlines()]]
            assert all(line["component"] == line["role"] == "selftest" for line in lines)
            outcome = json_in(done.stdout.decode())
            assert [check for check in outcome["checks"] if check["result"] == "failed"] == []
            assert done.returncode == Exit.OK, done.stderr
            assert outcome["suite"] == suite
        other = next(n for n in ("veen-system", "veen-tenant-acme-prod") if n != name)
        stranger = run_job(Namespace(tmp_path / "other", objects, secrets, other), hub.url, env)
        assert stranger.returncode == Exit.SELFTEST
    finally:
        hub.stop()
        hub.stdout.close()


def test_jobs_pass_only_options_that_the_command_has(rendered):
    by_name = dict(commands())
    for o in rendered[0]:
        if o["kind"] != "Job":
            continue
        suite, *arguments = o["spec"]["template"]["spec"]["containers"][0]["args"]
        command = by_name[f"selftest {suite}"]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options
        command.make_context(suite, [a for a in arguments if a != "/secrets/issuer.key"], resilient_parsing=True)
