"""SDR0: the events, the configuration and the checkpoints of the recorder."""
