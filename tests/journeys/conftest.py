"""One hub for each journey: an administrator's token, and revocations enforced."""

import secrets

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV
from tests.journeys.typed import People


@pytest.fixture
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "admin.token"
    token.write_text(secrets.token_hex(32) + "\n")
    token.chmod(0o600)
    options = ("--set", "admission.kex1_plus=true", "--set", f"auth.admin_token_files={token}")
    with running(tmp_path / "data", *DEV, *options) as hub:
        yield People(tmp_path, hub)
