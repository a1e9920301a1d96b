"""The container images: built twice they are the same, and what they hold runs without privileges (OPS-01, K8S-13)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.hubprocess import veen
from tests.products.kube.kubelet import image_runtime, missing_for_pods
from tests.products.kube.mesh import ACME, CONTEXT, SELFTESTS, Mesh
from tests.waiting import until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("images")]


def needed(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian package {program})")
    if os.geteuid():
        pytest.skip("images are built and unpacked by root")


def built(directory):
    """Image ids by name; the layout is directory/veen."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "build_image.py", "--output", directory],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stderr)
    return {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    needed("buildah", "umoci", "bwrap")
    directory = tmp_path_factory.mktemp("image")
    return directory, built(directory)


@pytest.fixture(scope="module")
def rootfs(image, tmp_path_factory):
    directory, images = image
    (tag,) = [name.replace(":", "-") for name in images if name.startswith("veen-hub:")]
    bundle = tmp_path_factory.mktemp("bundle") / "hub"
    subprocess.run(
        ["umoci", "unpack", "--image", f"{directory / 'veen'}:{tag}", bundle], check=True, capture_output=True
    )
    return bundle / "rootfs"


@pytest.mark.slow
def test_two_builds_give_one_image(image, tmp_path):
    assert built(tmp_path) == image[1]
    assert sorted(name.split(":")[0] for name in image[1]) == ["veen-bridge", "veen-cli", "veen-hub", "veen-selftest"]


def test_there_is_no_shell_and_nothing_to_install_with(rootfs):
    programs = {path.name for folder in ("bin", "usr/bin", "sbin", "usr/sbin") for path in (rootfs / folder).glob("*")}
    assert not programs & {"sh", "bash", "dash", "apt", "apt-get", "dpkg", "pip", "perl"}
    assert not list((rootfs / "opt/veen/lib").glob("pip"))
    for path in rootfs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert not path.stat().st_mode & 0o6000, f"{path} changes the user"


def test_the_configuration_says_who_runs_and_what(image):
    directory, _ = image
    index = json.loads((directory / "veen" / "index.json").read_text())
    for manifest in index["manifests"]:
        tag = manifest["annotations"]["org.opencontainers.image.ref.name"]
        blob = json.loads(_blob(directory, manifest["digest"]))
        config = json.loads(_blob(directory, blob["config"]["digest"]))
        assert config["config"]["User"] == "10001:10001"
        assert config["config"]["Entrypoint"] == [f"/opt/veen/bin/{tag.rpartition('-')[0]}"]
        assert config["created"].startswith("1970-01-01")


def _blob(directory, digest):
    return (directory / "veen" / "blobs" / Path(*digest.split(":"))).read_bytes()


@contextmanager
def contained(rootfs, data, *words):
    """A program of the image: read-only root, no capabilities, an own process tree."""
    command = [
        "bwrap", "--ro-bind", rootfs, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108 - inside
        "--bind", data, "/var/lib/veen",
        "--unshare-pid", "--unshare-user", "--uid", "10001", "--gid", "10001", "--cap-drop", "ALL", "--die-with-parent",
        "--clearenv", "--setenv", "PATH", "/usr/bin", *words,
    ]  # fmt: skip
    log = data.with_suffix(".log")
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            yield process, log
        finally:
            process.terminate()
            process.wait(60)


def pid_inside(pid, name):
    """The process of this name below `pid`, as this machine numbers it."""
    for child in (
        int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()
    ):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if any(word.endswith(f"/{name}".encode()) for word in words[:3]) and b"bwrap" not in words[0]:
            return child
        if (deeper := pid_inside(child, name)) is not None:
            return deeper
    return None


@pytest.mark.req("K8S-13")
def test_the_hub_of_the_image_serves_and_its_cli_makes_keys(rootfs, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    words = ("veen-hub", "--dev", "--port", "0", "--data-dir", "/var/lib/veen", "--json")
    with contained(rootfs, data, *words) as (process, log):
        until(lambda: process.poll() is not None or _about(log) is not None)
        assert process.poll() is None, log.read_text()
        about = _about(log)
        until(lambda: _status(f"{about['url']}/readyz") == 200)
        home = tmp_path / "home"
        env = {"VEEN_HOME": str(home)}
        assert veen("keygen", "--insecure-plain-keystore", env=env).returncode == 0
        assert veen("id", "keyring", "new", "orders", env=env).returncode == 0
        sent = veen("send", "orders", "hello", "--hub", about["url"], "--pin", about["hub_pk"], env=env)
        assert sent.returncode == 0, sent.stderr
        os.kill(pid_inside(process.pid, "veen-hub"), signal.SIGTERM)  # not to bwrap, which would end at once
        assert process.wait(60) == 0, log.read_text()
    work = tmp_path / "work"
    work.mkdir()
    keygen = ("veen-cli", "keygen", "--insecure-plain-keystore", "--out", "/var/lib/veen/client")
    with contained(rootfs, work, *keygen) as (
        process,
        log,
    ):
        assert process.wait(120) == 0, log.read_text()
    assert (work / "client").is_dir()


@pytest.mark.req("K8S-14")
def test_the_rendered_universe_runs_with_the_image(rootfs, tmp_path):
    """The bytes of `veen kube render`, with the programs of the image: the hubs are ready, the self-tests pass."""
    if (reason := missing_for_pods()) is not None:
        pytest.skip(reason)
    mesh = Mesh(tmp_path, image_runtime(rootfs))
    try:
        mesh.kube("apply", *CONTEXT)
        mesh.wait_ready()
        for namespace, name in SELFTESTS.items():
            job = mesh.cluster.wait_job(namespace, name)
            assert job.succeeded, job.output()
        assert mesh.send(ACME[0], "to a hub of the image") == 1
    finally:
        mesh.cluster.close()


def _about(log):
    text = log.read_text()
    try:
        return json.loads(text[: text.index("\n}") + 2]) if "\n}" in text else json.loads(text.splitlines()[0])
    except (ValueError, IndexError):
        return None


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a URL of our own hub
            return answer.status
    except urllib.error.HTTPError as exc:
        return exc.code
    except OSError:
        return None
