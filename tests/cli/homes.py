"""A home of its own for each test, and commands that run in it without a process of their own."""

import json

from click.testing import CliRunner

from veen.cli.app import cli

CLEAN = {
    "NO_COLOR": "1",
    "VEEN_FORCE_TTY": "",
    "VEEN_CONTEXT": "",
    "VEEN_HUB": "",
    "VEEN_IDENTITY": "",
    "VEEN_DEBUG": "",
    "VEEN_CHECK_PIN": "0",  # no test looks up the invented hosts of its contexts
}
PIN, OTHER = f"ed25519:{'a' * 64}", f"ed25519:{'b' * 64}"


class Cli:
    """`veen` in one home."""

    def __init__(self, root):
        self.root = root
        self.env = {**CLEAN, "VEEN_HOME": str(root)}

    def invoke(self, *args, stdin=None, **env):
        return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, env={**self.env, **env})

    def run(self, *args, stdin=None, code=0, **env):
        result = self.invoke(*args, stdin=stdin, **env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *args, **more):
        """What a command says as JSON: its result, or its error."""
        result = self.run(*args, "--json", **more)
        return json.loads(result.stdout or result.stderr)

    def keygen(self, name="alice"):
        return self.json("keygen", "--name", name, "--insecure-plain-keystore")

    def secret_free(self, *secrets):
        """No file of the home holds any of these in the clear."""
        data = b"".join(path.read_bytes() for path in self.root.rglob("*") if path.is_file())
        return not any(secret in data for secret in secrets)
