"""The schemas of Kubernetes over manifests, strictly and without a network (`kubernetes-validate`, extra `kube`)."""

from collections.abc import Sequence
from typing import Any, Final

from veen.core.errors import StatedError
from veen.core.extras import install_hint
from veen.products.kube.objects import Manifest
from veen.products.kube.rules import ManifestFault

VERSIONS: Final = ("1.31", "1.34", "1.37")


class ValidatorMissing(StatedError):
    """The schemas of Kubernetes are not installed."""

    hint = f"{install_hint('kube')} `--no-schemas` checks the rules of the profile only."


def check_schemas(objects: Sequence[Manifest], versions: Sequence[str] = VERSIONS) -> list[ManifestFault]:
    """Return the faults that the API servers of these versions would refuse: unknown, missing and wrong fields."""
    try:
        import kubernetes_validate
    except ImportError as exc:
        raise ValidatorMissing("the package kubernetes-validate is not installed") from exc
    faults = []
    for version in versions:
        for number, o in enumerate(objects, start=1):
            try:
                kubernetes_validate.validate(o, version, strict=True)
            except kubernetes_validate.ValidationError as exc:
                faults.append(ManifestFault("K.SCHEMA", _place_of(o, number), f"{version}: {_words(exc)}"))
            except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as exc:
                faults.append(
                    ManifestFault("K.SCHEMA", _place_of(o, number), f"{version}: no schema for this kind: {exc}")
                )
    return sorted(set(faults))


def _place_of(o: Any, number: int) -> str:
    if not isinstance(o, dict) or not isinstance(o.get("metadata"), dict):
        return f"document {number}"
    metadata = o["metadata"]
    return f"{o.get('kind')} {'/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))}"


def _words(exc: Any) -> str:
    path = ".".join(str(part) for part in getattr(exc, "path", ()))
    message = str(getattr(exc, "message", exc)).splitlines()[0]
    return f"{path}: {message}" if path else message
