"""VEEN on Kubernetes: manifests of a universe, checked and applied (001 spec-4, docs/kubernetes.md).

`universe` reads universe.toml, `objects` and `render` turn it into sorted YAML without contacting a cluster, `rules`
and `schemas` check manifests of any origin, `secrets` creates keys, `cluster` runs kubectl, `spark` makes pod
templates.
"""

from veen.ext import Product

PRODUCT = Product(
    name="kube",
    about="Hubs on Kubernetes (001 spec-4).",
    extra="kube",
    commands={"kube": "veen.products.kube.commands.group:kube"},
)
