"""Tests of `veen_native` against the code it stands in for. `make` builds it where cargo and its registry answer."""

import pytest


@pytest.fixture(scope="session")
def native():
    return pytest.importorskip("veen_native", reason="veen_native is not built here: make native")
