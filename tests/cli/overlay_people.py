"""A real hub process, and several people with homes of their own: what commands of overlays are tested in."""

import contextlib

from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk


class Person(Talk):
    """Somebody who shares streams with others."""

    def __init__(self, root, hub, name):
        super().__init__(root, hub, name)
        self.name, self.client_id, self.card = name, self.me["client_id"], self.me["card"]
        self.principal = self.me["id_sign_pk"]

    def join(self, other, stream):
        """Take the read key of a stream from another person."""
        path = self.root / "key"
        other.run("id", "keyring", "share", stream, "--read", "--out", path)
        self.run("id", "keyring", "add", f"@{path}")
        path.unlink()


@contextlib.contextmanager
def world(tmp_path, *names, options=DEV):
    """A hub and people."""
    with running(tmp_path / "hub", *options) as hub:
        yield hub, *(Person(tmp_path / name, hub, name) for name in names)
