"""`veen kube spark-pods`: writes the files that `veen spark submit --master k8s://…` needs beside a universe."""

from pathlib import Path

import click

from veen.cli.shared.output import Output, output_options
from veen.products.kube.commands.common import UNIVERSE, hub_named, universe_of


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
    from veen.products.kube import spark
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
