"""`veen kube`."""
