"""veen kube."""
