"""What the commands of `veen kube` do to a cluster, on one in memory (001 spec-4 §7, §9, §11)."""

import copy
import itertools
import json
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from tests.cli.hubprocess import report
from tests.examples import slow
from tests.products.kube.papercluster import PaperCluster

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.core.crypto.ed25519 import SigningKey
from veen.products.kube.cluster import ClusterConflict, ClusterForbidden

CONTEXT = ("--kube-context", "mini")
ACME = ("veen-tenant-acme-prod", "veen-hub")
AUTHORITY = ("veen-system", "veen-authority-hub")


class World:
    """A universe on disk and a cluster in memory."""

    def __init__(self, directory, cluster):
        self.file, self.cluster = directory / "universe.toml", cluster
        self.elsewhere = None  # what applies to another cluster
        cluster.learn = self.learn_keys

    def kube(self, *words, code=0):
        """Return what a command says; with `code` None it may end as it likes."""
        if code is not None:
            return report("kube", *words, "--file", self.file, code=code)
        done = CliRunner().invoke(cli, ["kube", *map(str, words), "--file", str(self.file), "--json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code

    def learn_keys(self):
        for path in (self.file.parent / "keys").rglob("*.key"):
            key = SigningKey(bytes.fromhex(path.read_text().strip()))
            self.cluster.publics[path.name] = f"ed25519:{key.public.hex()}"

    def status(self):
        """Return the exit code and the rows of `status`."""
        done = CliRunner().invoke(cli, ["kube", "status", *CONTEXT, "--file", str(self.file), "--json"])
        return done.exit_code, json.loads(done.stdout)["hubs"]

    def objects(self, *options):
        return self.cluster.rendered(self.kube("render", *options)["yaml"])


@pytest.fixture
def use(monkeypatch):
    """Let kubectl be a cluster in memory."""

    def use(cluster):
        def run(command, **options):
            cluster.learn()
            return cluster.run(command, **options)

        monkeypatch.setattr("veen.products.kube.cluster.shutil.which", lambda program: program)
        monkeypatch.setattr("veen.products.kube.cluster.subprocess.run", run)
        monkeypatch.setattr("veen.products.kube.cluster.time.sleep", lambda seconds: None)

    return use


def made(directory, use):
    """An authority and a durable tenant, on disk, and an empty cluster."""
    world = World(directory, PaperCluster())
    use(world.cluster)
    world.kube("init")
    world.kube("tenant", "new", "acme-prod", "--storage", "1Gi")
    return world


@pytest.fixture
def world(tmp_path, use):
    return made(tmp_path, use)


# --- one history under one key -----------------------------------------------------------------------------------


def by_hand(world):
    """Apply what is rendered, with the Secrets that are missing, as the pages describe it."""
    objects, secrets = world.objects(), world.objects("--secrets")
    world.cluster.apply([o for o in objects if o["kind"] == "Namespace"])
    there = [o["metadata"]["namespace"] for o in world.cluster.of("Secret")]
    world.cluster.apply([o for o in secrets if o["metadata"]["namespace"] not in there])
    world.cluster.apply([o for o in objects if o["kind"] not in ("Namespace", "Job")])
    world.kube("status", *CONTEXT, code=None)  # as the page says


def destroy_and_make(world):
    world.kube("tenant", "destroy", "acme-prod", "--yes", *CONTEXT)
    world.kube("tenant", "new", "acme-prod", "--storage", "1Gi")


COMMANDS = {
    "apply": lambda world: world.kube("apply", "--within", "1s", *CONTEXT, code=None),
    "apply to another cluster": lambda world: world.elsewhere(),
    "by kubectl": by_hand,
    "delete": lambda world: world.kube("delete", "acme-prod", "--yes", *CONTEXT),
    "destroy, new": destroy_and_make,
    "diff": lambda world: world.kube("diff", *CONTEXT),
    "job selftest": lambda world: world.kube("job", "selftest", "acme-prod", *CONTEXT, code=None),
    "rotate-keys": lambda world: world.kube("rotate-keys", "acme-prod", "--within", "1s", *CONTEXT, code=None),
    "rotate-keys here": lambda world: world.kube("rotate-keys", "acme-prod"),
    "status": lambda world: world.kube("status", *CONTEXT, code=None),
    "upgrade": lambda world: world.kube("upgrade", "9.9.9", "--within", "1s", *CONTEXT, code=None),
}


class Sequences:
    """Runs commands from copies of a world, and skips what was run from an equal one."""

    def __init__(self, directory, use):
        self._directory, self._use, self._numbers, self._seen = directory, use, itertools.count(), set()
        self.begun = 0

    def after(self, world, command, *, is_lost=False):
        """Return a copy of a world after one more command, and after it the loss of all volumes."""
        directory, cluster = self._directory / str(next(self._numbers)), copy.deepcopy(world.cluster)
        shutil.copytree(world.file.parent, directory)
        copied, other = World(directory, cluster), PaperCluster()
        other.histories, other.learn = cluster.histories, copied.learn_keys  # of one key, wherever its logs are

        def elsewhere():
            self._use(other)
            copied.kube("apply", "--within", "1s", *CONTEXT, code=None)
            self._use(cluster)

        copied.elsewhere = elsewhere
        self._use(cluster)
        COMMANDS[command](copied)
        if is_lost:
            cluster.lose_volumes()
        return copied

    def is_new(self, world):
        """Return True for a world that is not equal to an earlier one."""
        files = sorted(
            (str(path.relative_to(world.file.parent)), path.read_bytes())
            for path in world.file.parent.rglob("*")
            if path.is_file()
        )
        cluster = world.cluster
        state = repr((files, cluster.everything(), sorted(cluster.claims.items()), sorted(cluster.histories.items())))
        before = len(self._seen)
        self._seen.add(hash(state))
        return len(self._seen) > before


@pytest.mark.req("K8S-18")
@pytest.mark.parametrize("is_lost", [True, slow(False)])
def test_no_two_commands_with_a_lost_volume_between_begin_two_logs_under_one_key(tmp_path, use, is_lost):
    (tmp_path / "start").mkdir()
    new = made(tmp_path / "start", use)
    run = Sequences(tmp_path, use)
    applied = run.after(new, "apply")
    assert sorted(applied.cluster.histories.values()) == [1, 1]
    ends = 0
    for start, first in itertools.product((new, applied), COMMANDS):
        middle = run.after(start, first, is_lost=is_lost)
        if not run.is_new(middle):
            continue
        for second in COMMANDS:
            end = run.after(middle, second, is_lost=is_lost)
            if run.is_new(end):
                end = run.after(end, "apply")
            assert set(end.cluster.histories.values()) <= {1}, (start is new, first, second)
            ends += len(end.cluster.histories) > 0
    assert ends > 80  # most sequences did begin a log


@pytest.mark.req("K8S-18")
def test_a_certificate_is_given_to_one_cluster_and_taken_from_it_when_the_log_has_begun(world):
    birth = world.file.parent / "keys" / ACME[0] / "hub" / "birth.json"
    assert birth.exists()
    done = world.kube("apply", *CONTEXT)
    assert done["births_settled"] == ["veen-system", ACME[0]]
    assert not birth.exists()
    assert "birth.json" not in world.cluster.find("Secret", ACME[0], "veen-hub-keys")["data"]
    world.cluster.lose_volumes()
    assert world.cluster.ready_count(*ACME) == 0
    assert set(world.cluster.histories.values()) == {1}


# --- who may do what ---------------------------------------------------------------------------------------------


@pytest.mark.req("K8S-16")
def test_what_an_administrator_applies_is_apart_and_no_other_command_touches_it(world):
    world.kube("apply", "--cluster", *CONTEXT)
    wide = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    rendered = world.objects("--cluster")
    assert {o["kind"] for o in rendered} == wide | {"Namespace", "ServiceAccount"}
    assert len(world.cluster.of("ClusterRole")) == 2
    before = [o for o in world.cluster.everything() if o["kind"] in wide]
    for o in before:
        world.cluster.delete(o["kind"], "", o["metadata"]["name"])
    world.cluster.commands.clear()
    world.kube("apply", *CONTEXT)
    world.kube("diff", *CONTEXT)
    world.kube("status", *CONTEXT)
    world.kube("upgrade", "0.2.0", *CONTEXT)
    world.kube("rotate-keys", "acme-prod", *CONTEXT)
    world.kube("tenant", "destroy", "acme-prod", "--yes", *CONTEXT)
    assert not [o for o in world.cluster.everything() if o["kind"] in wide]
    assert not [words for words in world.cluster.commands if "--all-namespaces" in words]
    outside = [words for words in world.cluster.commands if words[2] == "get" and "--namespace" not in words]
    assert {words[3] for words in outside} <= {"namespaces", "namespace"}


# --- what an API server refuses ----------------------------------------------------------------------------------

CONFLICT = """error: Apply failed with 2 conflicts: conflicts with "kubectl-set" using apps/v1:
- .spec.template.spec.containers[name="hub"].image
- .spec.replicas
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
"""


def test_a_conflict_is_told_in_a_line_and_force_conflicts_takes_the_fields(world):
    world.cluster.refusal = ("apply", CONFLICT)
    refused = world.kube("apply", *CONTEXT, code=Exit.LOCAL)
    assert "kubectl-set" in refused["cause"] + refused["message"]
    assert ".spec.replicas" in refused["cause"] + refused["message"]
    assert "Please review" not in json.dumps(refused)
    assert "--force-conflicts" in refused["hint"]
    world.cluster.refusal = None
    world.cluster.commands.clear()
    world.kube("apply", "--force-conflicts", *CONTEXT)
    world.kube("upgrade", "0.2.0", "--force-conflicts", *CONTEXT)
    applied = [words for words in world.cluster.commands if words[2] == "apply"]
    assert [words for words in applied if "--force-conflicts" not in words] == applied[3:4] + applied[-1:]  # Jobs


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (CONFLICT, ClusterConflict),
        (
            'error: Apply failed with 1 conflict: conflict with "kubectl" using admissionregistration.k8s.io/v1: '
            ".spec.matchConstraints\n",
            ClusterConflict,
        ),
        (
            'Error from server (Forbidden): namespaces "veen-system" is forbidden: User "x" cannot patch resource '
            '"namespaces" in API group "" in the namespace "veen-system"\n',
            ClusterForbidden,
        ),
    ],
)
def test_the_hint_fits_what_the_cluster_refused(world, words, kind):
    world.cluster.refusal = ("apply", words)
    assert world.kube("apply", *CONTEXT, code=Exit.LOCAL)["hint"].replace("\n", " ") == kind.hint


def test_an_upgrade_that_the_cluster_refuses_leaves_the_version_in_the_file(world):
    world.kube("apply", *CONTEXT)
    before = world.file.read_text()
    world.cluster.refusal = ("--dry-run=server", CONFLICT)
    world.kube("upgrade", "0.2.0", *CONTEXT, code=Exit.LOCAL)
    assert world.file.read_text() == before
    world.cluster.refusal = None
    world.kube("upgrade", "0.2.0", *CONTEXT)
    assert 'version = "0.2.0"' in world.file.read_text()


def test_a_statefulset_of_an_earlier_release_is_made_anew_and_its_pod_stays(world):
    """With OrderedReady a pod that never became ready stays for ever, and the field cannot be changed."""
    world.kube("apply", *CONTEXT)
    hub = world.cluster.find("StatefulSet", *AUTHORITY)
    assert hub["spec"]["podManagementPolicy"] == "Parallel"
    for command in (("apply",), ("upgrade", "0.2.0")):
        del world.cluster.find("StatefulSet", *AUTHORITY)["spec"]["podManagementPolicy"]
        assert "made anew" in world.kube("diff", *CONTEXT)["diff"]
        world.cluster.commands.clear()
        world.kube(*command, *CONTEXT)
        (deleted,) = [words for words in world.cluster.commands if words[2:4] == ["delete", "statefulset"]]
        assert "--cascade=orphan" in deleted
        assert world.cluster.find("StatefulSet", *AUTHORITY)["spec"]["podManagementPolicy"] == "Parallel"
    assert world.kube("status", *CONTEXT)


def test_a_diff_of_a_fresh_cluster_names_everything_as_new(world):
    done = world.kube("diff", *CONTEXT)
    assert done["changes"]
    assert "+ Namespace veen-system\n" in done["diff"]
    assert "+ Deployment veen-tenant-acme-prod/veen-hub\n" in done["diff"]
    assert world.cluster.everything() == []


# --- status ------------------------------------------------------------------------------------------------------


def test_status_tells_what_differs_from_the_file_and_ends_with_6(world):
    world.kube("apply", *CONTEXT)
    rows = world.kube("status", *CONTEXT)["hubs"]
    assert [(row["ready"], row["wanted"], row["drift"], row["reason"]) for row in rows] == [(1, 1, [], None)] * 2
    assert rows[0]["running_version"] == rows[0]["file_version"] == rows[0]["version"]
    hub = copy.deepcopy(world.cluster.find("Deployment", *ACME))
    hub["spec"]["replicas"] = 0
    world.cluster.apply([hub])
    refused = world.status()
    assert refused[0] == Exit.POLICY
    row = refused[1][1]
    assert (row["state"], row["ready"], row["wanted"], row["drift"]) == ("not ready", 0, 0, ["not ready", "replicas"])
    assert row["reason"] == "it is scaled to 0"
    world.file.write_text('version = "0.7.7"\n' + world.file.read_text())
    world.kube("apply", *CONTEXT, code=None)
    world.file.write_text(world.file.read_text().replace("0.7.7", "0.8.8"))
    drift = world.status()[1][1]["drift"]
    assert {"version", "image"} <= set(drift)


# --- rotation ----------------------------------------------------------------------------------------------------


def test_a_rotation_asks_the_hub_first_and_makes_nothing_while_another_lasts(world, monkeypatch):
    world.kube("apply", *CONTEXT)

    def execute(namespace, name, words):
        entries = [
            {"hub_pk": "ed25519:00", "valid_from": 1, "valid_until": 1 << 40},
            {"hub_pk": "ed25519:11", "valid_from": 5, "valid_until": None},
        ]
        return subprocess.CompletedProcess(words, 0, json.dumps({"hub_keys": entries}), "")

    monkeypatch.setattr(world.cluster, "execute", execute)
    before = {path: path.read_bytes() for path in world.file.parent.rglob("*") if path.is_file()}
    objects = world.cluster.everything()
    refused = world.kube("rotate-keys", "acme-prod", *CONTEXT, code=Exit.REFUSED)
    assert refused["code"] == "E.CONFLICT"
    assert {path: path.read_bytes() for path in world.file.parent.rglob("*") if path.is_file()} == before
    assert world.cluster.everything() == objects
