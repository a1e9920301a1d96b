"""Who knows whom (spec §3.6, §3.7, §13): told from the source itself, import by import."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import veen
from veen.storage import layout

pytestmark = pytest.mark.xdist_group("architecture")  # in one process, which parses the source once

ROOT = Path(veen.__file__).parent
# From the lowest to the highest; hub, client and overlays do not know each other.
PROJECT = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text("utf-8"))
LAYERS = tuple(
    {name.strip() for name in row.split("|")}
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract["id"] == "layers"
    for row in reversed(contract["layers"])
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
TOOLS = LEVEL["lake"]  # the lowest layer of those that only use what is below
PACKAGES = sorted(package for package in LEVEL if (ROOT / package).is_dir())
PURE = {"nacl", "cryptography", "cbor2"}  # what the core may need besides Python itself
OF_TUPLES = {"_asdict", "_fields", "_replace"}  # public, whatever their names look like


@cache
def trees(package: str) -> tuple[tuple[str, ast.Module], ...]:
    files = sorted((ROOT / package).rglob("*.py"))
    return tuple((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))) for path in files)


@cache
def nodes(package: str) -> tuple[tuple[str, ast.Module, tuple[ast.AST, ...]], ...]:
    """(file, tree, the nodes that tests look at): walking a tree takes as long as parsing it."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant, ast.Attribute)
    return tuple(
        (path, tree, tuple(node for node in ast.walk(tree) if isinstance(node, kinds))) for path, tree in trees(package)
    )


@cache
def imports(package: str) -> tuple[tuple[str, str, str], ...]:
    """(file, module, name) for every import, wherever it stands; the name is empty for `import module`."""
    return tuple(_imports(package))


def _imports(package: str) -> Iterator[tuple[str, str, str]]:
    for path, _, walked in nodes(package):
        for node in walked:
            if isinstance(node, ast.Import):
                yield from ((path, alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: relative imports hide who is meant"
                yield from ((path, node.module or "", alias.name) for alias in node.names)


def known_packages(package: str) -> set[str]:
    """The packages of ours that `package` imports, itself left out."""
    named = set()
    for _, module, name in imports(package):
        parts = [*module.split("."), *([name] if name else [])]
        if parts[0] == "veen" and len(parts) > 1 and parts[1] in LEVEL:
            named.add(parts[1])
    return named - {package}


@pytest.mark.req("GEN-30", "GEN-31", "CKQ-04")
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_knows_only_packages_below_it(package):
    below = {other for other in LEVEL if LEVEL[other] < LEVEL[package]}
    assert known_packages(package) <= below


@pytest.mark.req("GEN-29", "GEN-33")
def test_the_core_needs_nothing_but_python_and_primitives():
    """No hub, no engine, no overlay, no file, no socket, no clock: bytes in, values out."""
    assert known_packages("core") == set()
    outside = {module.split(".")[0] for _, module, _ in imports("core")} - {"veen"}
    assert outside - PURE <= sys.stdlib_module_names
    assert not outside & {"asyncio", "os", "pathlib", "random", "secrets", "socket", "sqlite3", "subprocess", "time"}


@pytest.mark.req("GEN-29")
def test_storage_has_no_overlay_semantics_and_overlays_no_hub_internals():
    assert known_packages("storage") == {"core", "io"}
    assert known_packages("overlays") == {"core"}


@pytest.mark.req("GEN-32")
def test_only_storage_knows_how_the_data_directory_is_laid_out():
    """Names of its files stand in `veen.storage.layout`; others ask for them."""
    names = {value for key, value in vars(layout).items() if key.isupper() and isinstance(value, str) and "." in value}
    assert {"index.db", "limits.json"} <= names
    parts = ("chunk-", "active-", "peaks-", "checkpoint-index-", ".summary", ".nodes", ".loc")
    for package in PACKAGES:
        if package == "storage":
            continue
        for path, _, walked in nodes(package):
            for node in walked:
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                    said = node.value
                    assert said not in names, f"{path}:{node.lineno} spells out {said}"
                    assert not said.startswith(parts[:4]), f"{path}:{node.lineno} makes up {said}"
                    assert not said.endswith(parts[4:]), f"{path}:{node.lineno} makes up {said}"


@pytest.mark.req("GEN-34", "GEN-29")
@pytest.mark.parametrize("package", [name for name in PACKAGES if LEVEL[name] >= TOOLS])
def test_tools_use_public_names_only(package):
    for path, module, name in imports(package):
        if module.split(".")[0] == "veen" and module.split(".")[1:2] != [package]:
            private = [part for part in (*module.split("."), name) if part.startswith("_") and part != "__version__"]
            assert not private, f"{path} imports {private[0]} of {module}"
    for path, tree, walked in nodes(package):
        for node in walked:
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                owner = node.value
                own = isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
                assert own or node.attr in defined(tree) | OF_TUPLES, f"{path}:{node.lineno} uses {node.attr}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_a_private_name_of_another(package):
    """An underscore is what makes a name private; only packages, and modules that pass names on, have `__all__`."""
    for path, module, name in imports(package):
        assert module.split(".")[0] != "veen" or not re.match("_[a-z]", name), f"{path}: {name}"


@cache
def defined(tree: ast.Module) -> set[str]:
    """Private names of the module itself, which its own functions may use on each other's objects."""
    written = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return written | {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.req("GEN-35", "PHDR-03", "ADM-08")
@pytest.mark.parametrize("package", ["hub", "storage"])
def test_hubs_have_no_means_to_open_a_payload(package):
    """Of a ciphertext they know where its parts begin; keys, headers and bodies are for others (spec §8.3, §13)."""
    opening = {
        "veen.core.crypto.hpke",
        "veen.core.crypto.aead",
        "veen.core.objects.payload_hdr",
        "veen.core.crypto.hkdf",
        "veen.core.crypto.x25519",
    }
    for path, module, name in imports(package):
        whole = f"{module}.{name}"
        assert module not in opening, path
        assert whole not in opening, path
        if module == "veen.core.sealing.ciphertext":
            assert name == "Parts", path
        assert whole != "veen.core.sealing.ciphertext", path


@pytest.mark.req("CAP-16")
@pytest.mark.parametrize("package", ["hub", "storage"])
def test_hubs_issue_no_tokens(package):
    """spec §6.1: a hub reads and verifies tokens; making or renewing one takes the key of an issuer, out of band."""
    for path, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                is_issuing = (spoken(node.value), node.attr) == ("CapToken", "issue") or node.attr == "renew"
                assert not is_issuing, f"{path}:{node.lineno} makes a token"
            if isinstance(node, ast.Call):
                assert spoken(node.func) != "CapToken", f"{path}:{node.lineno} makes a token"


def spoken(node: ast.expr) -> str:
    """The last name of an expression: `auth_ref` for auth_ref, msg.auth_ref and token.auth_ref()."""
    match node:
        case ast.Call():
            return spoken(node.func)
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
    return ""


@pytest.mark.req("SH0-02")
@pytest.mark.parametrize("package", ["core", "storage", "hub", "client", "overlays"])
def test_what_admits_is_compared_in_constant_time(package):
    """D-19: references to capabilities by compare_digest, or looked up by their hash; signatures by libsodium alone."""
    for path, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                named = {spoken(side) for side in (node.left, *node.comparators)}
                secret = named & {"auth_ref", "cap_ref", "bearer", "passphrase", "key_check"}
                assert not secret, f"{path}:{node.lineno} compares {secret.pop()}"
        verifiers = {"crypto_sign_open", "Ed25519PublicKey", "VerifyKey"}
        used = {name for where, _, name in imports(package) if where == path and name in verifiers}
        assert not used or path == "core/crypto/ed25519.py", path
