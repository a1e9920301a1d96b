"""The kernel of overlays: bodies, schemas, folds, snapshots, and the runner that folds a log."""
