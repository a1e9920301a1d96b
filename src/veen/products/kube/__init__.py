"""VEEN on Kubernetes: manifests of a universe, checked and applied (001 spec-4, docs/kubernetes.md).

`universe` reads universe.toml, `objects` and `render` turn it into sorted YAML without contacting a cluster, and into
pod templates for Spark. `rules` checks manifests of any origin, `secrets` creates keys, `cluster` runs kubectl.
"""

from veen.ext import Product

PRODUCT = Product(
    name="kube",
    about="Hubs on Kubernetes (001 spec-4).",
    extra="kube",
    commands={"kube": "veen.products.kube.commands.group:kube"},
)
