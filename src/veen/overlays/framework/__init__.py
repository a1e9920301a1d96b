"""What every overlay is made of: bodies, schemas, folds, snapshots, and how a log is folded."""
