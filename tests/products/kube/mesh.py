"""A universe of an authority, a durable and a disposable tenant that runs in a `MiniCluster`."""

from pathlib import Path

from tests.products.kube.minicluster import MiniCluster

CONTEXT = ("--kube-context", "mini")
AUTHORITY = ("veen-system", "veen-authority-hub")
ACME = ("veen-tenant-acme-prod", "veen-hub")  # durable
TEAM = ("veen-tenant-team1-dev", "veen-hub")  # disposable
SELFTESTS = {
    "veen-system": "veen-selftest-authority",
    ACME[0]: "veen-selftest-core",
    TEAM[0]: "veen-selftest-core",
}
CONFIG = """
[tenants.config.engine]
workers = 0
[tenants.config.admission]
capability_gating = false
streams = ["orders"]
"""


class Mesh:
    """A universe made by the commands, in a cluster, and somebody who writes to its hubs from the node."""

    def __init__(self, root: Path, runtime=None) -> None:
        (root / "cluster").mkdir()
        self.cluster = MiniCluster(root / "cluster", runtime)
        self.root, self.file, self.home = root, root / "universe.toml", root / "home"
        self.pins = {"veen-system": self.kube("init")["pin"]}
        self.file.write_text(self.file.read_text() + "[authority.config.engine]\nworkers = 0\n")
        self.new_tenant("acme-prod", "--storage", "1Gi")
        self.new_tenant("team1-dev")
        self.applied = None  # what the first `veen kube apply` said

    def kube(self, *words, code=0):
        return self.cluster.veen("kube", *words, "--file", self.file, code=code)

    def new_tenant(self, name, *options):
        tenant = self.kube("tenant", "new", name, *options)
        self.file.write_text(self.file.read_text() + CONFIG)
        self.pins[tenant["namespace"]] = tenant["pin"]

    def rendered(self):
        return self.cluster.rendered(self.kube("render")["yaml"])

    def wait_ready(self):
        for place in (AUTHORITY, ACME, TEAM):
            self.cluster.wait_ready(*place)

    def client(self, namespace, *words):
        """A command of somebody with keys, at the hub of a namespace."""
        if not self.home.exists():
            self.cluster.veen("keygen", "--insecure-plain-keystore", home=self.home)
            self.cluster.veen("id", "keyring", "new", "orders", home=self.home)
        at = ("--hub", self.cluster.url(namespace), "--pin", self.pins[namespace], "--insecure-http", "--wait", "60")
        return self.cluster.veen(*words, *at, home=self.home)

    def key(self, namespace):
        """The key that a hub signs with."""
        keys = self.cluster.veen("hub", "key", "show", "--hub", self.cluster.url(namespace))["hub_keys"]
        return keys[-1]["hub_pk"]

    def send(self, namespace, text):
        """The position of a message in the log of a hub."""
        return self.client(namespace, "send", "orders", text)["seq"]

    def bodies(self, namespace):
        return [entry["body"] for entry in self.client(namespace, "stream", "orders")["entries"]]
