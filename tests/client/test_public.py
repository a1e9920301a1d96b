"""The names of `veen.client`, and what importing them costs."""

import subprocess
import sys

import pytest

import veen.client


def test_every_public_name_is_there():
    assert set(veen.client.__all__) == set(veen.client._MODULES)
    for name in veen.client.__all__:
        assert getattr(veen.client, name).__name__ == name
    assert dir(veen.client) == sorted(veen.client.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        veen.client.Nothing  # noqa: B018 - looking is the test


def test_opening_a_keystore_loads_no_http_client():
    code = "import sys; from veen.client import open_identity; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'nacl'" in loaded
    for heavy in ("httpx2", "asyncio", "click", "pyarrow"):
        assert f"'{heavy}'" not in loaded
