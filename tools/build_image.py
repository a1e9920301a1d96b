"""Builds the container images of VEEN without an engine: Debian packages, the wheel, buildah.

    python tools/build_image.py --output DIR           OCI layout DIR/veen with a tag for each program
    python tools/build_image.py --output DIR --wheel dist/veen-0.2.0-py3-none-any.whl

One root file system, images that differ in their entry point: veen-hub, veen-bridge, veen-cli, veen-selftest. No
shell, no package manager, user 10001, nothing to write but /var/lib/veen and /tmp. The same packages give the same
image ids: times are fixed, bytecode is compiled unchecked, files are copied in one step. Needs buildah and apt-get,
and root (buildah without root needs subordinate ids). People with an engine may use the Containerfile instead.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
USER_ID: Final = 10001
EPOCH: Final = 0  # of every file
PROGRAMS: Final = {
    "veen-bridge": "veen.products.bridge.commands.group:veen_bridge_main",
    "veen-hub": "veen.cli.hub.group:veen_hub_main",
    "veen-cli": "veen.cli:main",
    "veen-selftest": "veen.products.selftest.commands:veen_selftest_main",
}
# What Python needs at run time, by Debian's names; {python} is python3.NN.
PACKAGES: Final = (
    "base-files", "ca-certificates", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1",
    "liblzma5", "libsqlite3-0", "libssl3", "libstdc++6", "libuuid1", "netbase", "tzdata", "zlib1g",
    "lib{python}-minimal", "lib{python}-stdlib", "{python}-minimal",
)  # fmt: skip
LEFT_OUT: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "etc/apt",
)


class BuildFailed(Exception):
    """A failed build of an image."""


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(
            f"{words[0]} {words[1] if len(words) > 1 else ''} ended with {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


def debian_python() -> str:
    """python3.NN, as Debian's python3 is today."""
    match = re.search(r"Depends: (python3\.\d+)\s", run("apt-cache", "depends", "python3"))
    if match is None:
        raise BuildFailed("apt-cache does not know python3: is this Debian, and was apt-get update run?")
    return match[1]


def unpack_packages(names: Sequence[str], work: Path, rootfs: Path) -> None:
    """Unpack the files of packages without running their scripts."""
    debs = work / "debs"
    debs.mkdir(exist_ok=True)
    run("apt-get", "download", *names, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        run("dpkg-deb", "-x", deb, rootfs)
    for name in LEFT_OUT:
        shutil.rmtree(rootfs / name, ignore_errors=True)
    for path in sorted((rootfs / "usr" / "bin").iterdir()) + sorted((rootfs / "usr" / "sbin").glob("*")):
        if not path.name.startswith("python3"):
            path.unlink()
    certificates = sorted((rootfs / "usr" / "share" / "ca-certificates").rglob("*.crt"))
    bundle = rootfs / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in certificates))


def install(wheel: Path, python: str, rootfs: Path) -> None:
    """Install the wheel and its dependencies for that Python, from wheels only."""
    library = rootfs / "opt" / "veen" / "lib"
    version = python.removeprefix("python")
    # fmt: off
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
        "--target", library, "--only-binary=:all:", "--python-version", version, "--implementation", "cp",
        "--platform", f"manylinux_2_28_{_machine()}", "--platform", f"manylinux2014_{_machine()}",
        "--platform", "any", "--constraint", ROOT / "constraints.txt", f"{wheel}[fast]",
    )
    # fmt: on
    shutil.rmtree(library / "bin", ignore_errors=True)
    for url in library.glob("*.dist-info/direct_url.json"):  # names the temporary place of the wheel
        url.unlink()
        record = url.with_name("RECORD")
        lines = [line for line in record.read_text("utf-8").splitlines() if "direct_url.json" not in line]
        record.write_text("\n".join(sorted(lines)) + "\n", "utf-8")
    packages = rootfs / "usr" / "lib" / "python3" / "dist-packages"  # where Debian's Python looks, in any process
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "veen.pth").write_text("/opt/veen/lib\n", "utf-8")
    scripts = rootfs / "opt" / "veen" / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    for name, entry in {**PROGRAMS, "veen": PROGRAMS["veen-cli"]}.items():
        module, _, function = entry.partition(":")
        text = f"#!/usr/bin/{python} -I\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        (scripts / name).write_text(text, "utf-8")
        (scripts / name).chmod(0o755)
        link = rootfs / "usr" / "bin" / name  # manifests name programs without a path
        link.symlink_to(f"/opt/veen/bin/{name}")


def compile_all(python: str, rootfs: Path) -> None:
    """Bytecode for a root that cannot be written to; only if this interpreter writes what that one reads."""
    if python != f"python{sys.version_info.major}.{sys.version_info.minor}":
        return
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for place in (rootfs / "opt" / "veen" / "lib", rootfs / "usr" / "lib" / python):
        compileall.compile_dir(place, quiet=2, stripdir=str(rootfs), invalidation_mode=mode, workers=1)


def prepare(rootfs: Path) -> None:
    """Users, places, times."""
    (rootfs / "etc" / "passwd").write_text(
        f"root:x:0:0:root:/:/none\nveen:x:{USER_ID}:{USER_ID}:VEEN:/var/lib/veen:/none\n"
    )
    (rootfs / "etc" / "group").write_text(f"root:x:0:\nveen:x:{USER_ID}:\n")
    (rootfs / "tmp").mkdir(exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    for path in sorted(rootfs.rglob("*"), reverse=True):
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def build(output: Path, wheel: Path, version: str) -> dict[str, str]:
    """Build the images; return their ids by name. The OCI layout is output/veen."""
    for program in ("buildah", "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise BuildFailed(f"{program} is not installed")
    python = debian_python()
    with tempfile.TemporaryDirectory(prefix="veen-image-") as directory:
        work = Path(directory)
        rootfs = work / "rootfs"
        rootfs.mkdir()
        unpack_packages([name.format(python=python) for name in PACKAGES], work, rootfs)
        install(wheel, python, rootfs)
        compile_all(python, rootfs)
        prepare(rootfs)
        data = work / "data"
        data.mkdir()
        os.utime(data, (EPOCH, EPOCH))
        storage = ("--root", work / "storage", "--runroot", work / "run")
        container = run("buildah", *storage, "from", "scratch").strip()
        run("buildah", *storage, "copy", "--quiet", container, rootfs, "/")
        run("buildah", *storage, "copy", "--quiet", "--chown", f"{USER_ID}:{USER_ID}", container, data, "/var/lib/veen")
        images = {}
        for name in PROGRAMS:
            # fmt: off
            run(
                "buildah", *storage, "config", "--user", f"{USER_ID}:{USER_ID}", "--workingdir", "/var/lib/veen",
                "--env", "PATH=/usr/bin", "--env", "HOME=/var/lib/veen", "--env", "VEEN_LOG_FORMAT=json",
                "--entrypoint", f'["/opt/veen/bin/{name}"]',
                "--cmd", "", "--label", f"org.opencontainers.image.version={version}",
                "--label", f"org.opencontainers.image.title={name}", container,
            )
            # fmt: on
            image = run(
                "buildah", *storage, "commit", "--quiet", "--timestamp", str(EPOCH), container, f"{name}:{version}"
            )
            images[name] = image.strip()
            run("buildah", *storage, "push", "--quiet", image.strip(), f"oci:{output / 'veen'}:{name}-{version}")
        run("buildah", *storage, "rm", container)
    return images


def build_wheel(work: Path) -> Path:
    """Build the wheel of this checkout; the same source gives the same bytes."""
    env = os.environ | {"SOURCE_DATE_EPOCH": "315532800"}  # zip files know no earlier year than 1980
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--wheel-dir", work, ROOT, env=env,
    )  # fmt: skip
    (wheel,) = work.glob("veen-*.whl")
    return wheel


def _machine() -> str:
    return os.uname().machine


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the container images of VEEN.")
    parser.add_argument("--output", type=Path, required=True, help="where the OCI layout goes")
    parser.add_argument("--wheel", type=Path, help="a wheel of veen; without it one is built of this checkout")
    options = parser.parse_args(words)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="veen-wheel-") as directory:
            wheel = options.wheel or build_wheel(Path(directory))
            version = wheel.name.split("-")[1]
            images = build(options.output.resolve(), wheel, version)
    except BuildFailed as exc:
        print(f"no image: {exc}", file=sys.stderr)
        return 1
    for name, image in images.items():
        print(f"{image[:12]}  {name}:{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
