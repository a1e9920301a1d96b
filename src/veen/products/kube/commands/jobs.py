"""`veen kube job`: runs a command or a self-test once, inside a cluster (001 spec-4 §7, §8).

`veen kube spark-pods`: writes the files that `veen spark submit --master k8s://…` needs beside a universe.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import several
from veen.cli.shared.output import Fail, Output, output_options
from veen.products.kube.commands.common import CONTEXT, UNIVERSE, WITHIN, hub_named, universe_of
from veen.products.kube.commands.lifecycle import selftest_failure

if TYPE_CHECKING:
    from veen.products.kube.objects import Manifest

job = LazyGroup("job", help="Run a command or a self-test once, inside a cluster.")

_JOB = several(
    UNIVERSE,
    click.option(
        "--secret", required=True, metavar="NAME",
        help="Secret in the namespace of the hub with the keystore: keystore.enc, identity_card.",
    ),
    click.option("--identity", default="default", show_default=True, help="Name of the identity in the keystore."),
    click.option("--cap", "has_cap", is_flag=True, help="The Secret also has a capability token: cap.cbor."),
    click.option("--kube-context", "context", help="Context to run the Job in. Default: print the manifest."),
    WITHIN,
)  # fmt: skip


def _run(
    output: Output, hub: str, action: str, words: list[str], path: Path, context: str | None, within: int, **rest: Any
) -> None:
    from veen.products.kube.cluster import Cluster, json_in
    from veen.products.kube.objects import cli_job, namespace_of
    from veen.products.kube.render import to_yaml

    universe, facts = universe_of(path)
    tenant = hub_named(universe, hub)
    manifest = cli_job(universe, tenant, facts[namespace_of(tenant)], action, words, **rest)
    if context is None:
        text = to_yaml([manifest])
        output.result({"job": _name(manifest), "yaml": text}, lambda: click.echo(text, nl=False))
        return
    cluster = Cluster(context)
    cluster.run_jobs([manifest])
    namespace, name = manifest["metadata"]["namespace"], _name(manifest)
    succeeded = cluster.wait_job(namespace, name, within)
    text = cluster.logs(namespace, name, all_containers=not succeeded)
    if not succeeded:
        raise Fail(
            "E.KUBE.JOB",
            f"the Job {namespace}/{name} failed",
            text.strip()[-500:] or "it did not say why",
            f"kubectl describe job {name} --namespace {namespace}",
        )
    try:
        answer: Any = json_in(text)
    except ValueError:
        answer = None
    data = {"job": name, "namespace": namespace, "answer": answer}
    output.result(data, lambda: output.text(text))


def _name(manifest: "Manifest") -> str:
    return str(manifest["metadata"]["name"])


@job.verb("send", "Send a message from inside the cluster.")
@click.argument("hub")
@click.argument("stream_name", metavar="STREAM")
@click.argument("body")
@_JOB
@output_options
def send(output: Output, hub: str, stream_name: str, body: str, **rest: Any) -> None:
    """Send BODY to STREAM at the hub of a tenant, or of `authority`, by a Job with keys from a Secret.

    Who may read Jobs of the namespace can read BODY there.

    \b
    kubectl create secret generic writer --namespace veen-tenant-acme-prod \\
        --from-file=keystore.enc --from-file=identity_card
    veen kube job send acme-prod orders '{"event":"order"}' --secret writer --kube-context prod
    """
    _run(output, hub, "send", [stream_name, body], **rest)


@job.verb("stream", "Read a stream from inside the cluster.")
@click.argument("hub")
@click.argument("stream_name", metavar="STREAM")
@click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, show_default=True, help="First position to read."
)
@_JOB
@output_options
def stream(output: Output, hub: str, stream_name: str, first: int, **rest: Any) -> None:
    """Read STREAM at the hub of a tenant, or of `authority`, by a Job with keys from a Secret. The log of the Job has
    what was read, in clear.

    \b
    veen kube job stream acme-prod orders --secret reader --kube-context prod
    """
    _run(output, hub, "stream", [stream_name, "--from", str(first)], **rest)


@job.verb("selftest", "Run the self-test of a hub again.")
@click.argument("hub")
@UNIVERSE
@CONTEXT
@WITHIN
@output_options
def selftest(output: Output, hub: str, path: Path, context: str, within: int) -> None:
    """Run the self-test Job of a tenant, or of `authority`, again, and wait for it. Exit code 7 if it fails.

    \b
    veen kube job selftest acme-prod --kube-context prod
    """
    from veen.products.kube.cluster import Cluster, json_in
    from veen.products.kube.objects import namespace_of
    from veen.products.kube.render import manifests

    universe, facts = universe_of(path)
    namespace = namespace_of(hub_named(universe, hub))
    (manifest,) = (
        o for o in manifests(universe, facts) if o["kind"] == "Job" and o["metadata"]["namespace"] == namespace
    )
    cluster = Cluster(context)
    cluster.run_jobs([manifest])
    if not cluster.wait_job(namespace, _name(manifest), within):
        raise selftest_failure(cluster, manifest)
    text = cluster.logs(namespace, _name(manifest))
    try:
        checks = [{"check": str(row["check"]), "result": str(row["result"])} for row in json_in(text)["checks"]]
    except (ValueError, KeyError, TypeError) as exc:
        raise Fail(
            "E.KUBE.JOB",
            f"the Job {namespace}/{_name(manifest)} did not report its checks",
            text.strip()[-500:],
            f"kubectl logs job/{_name(manifest)} --namespace {namespace}",
        ) from exc
    data = {"job": _name(manifest), "namespace": namespace, "checks": checks}
    output.result(data, lambda: output.table(("result", "check"), [[row["result"], row["check"]] for row in checks]))


@click.command("spark-pods")
@click.argument("hub")
@UNIVERSE
@click.option("--image", required=True, help="Image with Spark, Python, and VEEN with the extra spark.")
@click.option("--keys-secret", metavar="NAME", help="Secret with key files, mounted at /etc/veen in every pod.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory for the templates."
)
@output_options
def spark_pods(output: Output, hub: str, path: Path, image: str, keys_secret: str | None, out: Path) -> None:
    """Write pod templates for Spark in the namespace of a tenant's hub, or of `authority`, and print the settings that
    a submission needs.

    The pods run without privileges and may call the hub. The service account veen-spark, which lets the driver make
    executors, is for you to create. Checked against the schemas of Kubernetes; not tried on a cluster.

    \b
    veen kube spark-pods acme-prod --image registry.example/veen-spark:1 --keys-secret readers --out spark-pods
    """
    from veen.products.kube import render as spark
    from veen.products.kube.render import to_yaml

    universe, _ = universe_of(path)
    directory = out.absolute()
    pods = spark.spark_pods(
        universe, hub_named(universe, hub), image=image, directory=str(directory), keys_secret=keys_secret
    )
    directory.mkdir(parents=True, exist_ok=True)
    for name, template in pods.templates.items():
        (directory / name).write_text(to_yaml([template]), "utf-8")
    arguments = [f"--conf={name}={value}" for name, value in pods.settings.items()]
    data = {"directory": str(directory), "files": sorted(pods.templates), "arguments": arguments}

    def human() -> None:
        for argument in arguments:
            output.line(argument)

    output.result(data, human)
