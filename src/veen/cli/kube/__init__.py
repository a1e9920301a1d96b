"""veen kube."""

__all__: list[str] = []
