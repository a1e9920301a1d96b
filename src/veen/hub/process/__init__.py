"""The hub as a process: configuration, startup, runtime, housekeeping, logs and metrics."""
