"""Names that documents showed before the rooms were cut anew."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from veen._moved import MOVED, PACKAGES, find_new_name

# In a process of its own, in which nothing was imported before.
CODE = """
import importlib, sys
from veen._moved import MOVED, PACKAGES
for name, today in sorted({**MOVED, **PACKAGES}.items()):
    assert importlib.import_module(name) is sys.modules[today], name
"""


# Each line a module and a name that documents and examples imported before public names were declared.
DOCUMENTED = Path(__file__).with_name("documented_imports.txt")
IMPORTS = """
import importlib, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
for line in open(sys.argv[1], encoding="ascii"):
    module, name = line.split()
    if not hasattr(importlib.import_module(module), name):
        importlib.import_module(f"{module}.{name}")
"""


def test_what_documents_imported_before_is_still_there():
    command = [sys.executable, "-c", IMPORTS, str(DOCUMENTED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(DOCUMENTED.read_text("ascii").splitlines()) > 90


def test_an_old_name_gives_the_module_of_today_and_a_warning():
    done = subprocess.run([sys.executable, "-W", "always", "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(MOVED) > 20
    for name, today in {**MOVED, **PACKAGES}.items():
        assert f"DeprecationWarning: {name} is now {today}\n" in done.stderr


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("veen.spark.session", "veen.lake.spark.session"),
        ("veen.products.airgap.verify", "veen.products.bridge.verify"),
        ("veen.fsck", None),
    ],
)
def test_a_package_moves_with_what_is_in_it(old, today):
    assert find_new_name(old) == today


def test_a_name_that_never_was_is_not_found():
    for name in ("veen.pipeline.nothing", "veen.nothing"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)


@pytest.mark.parametrize(
    ("module", "name", "today"),
    [
        ("veen.overlays.operations.content", "File", "ContentFile"),
        ("veen.overlays.rpc.ends", "Context", "CallContext"),
        ("veen.overlays.wallet", "Policy", "WalletPolicy"),
        ("veen.overlays.wallet.approvals", "Approval", "TransferApproval"),
        ("veen.overlays.wallet.bridge", "Seen", "BridgedReferences"),
    ],
)
def test_a_class_has_the_name_that_documents_showed_too(module, name, today):
    assert getattr(import_module(module), name) is getattr(import_module(module), today)
