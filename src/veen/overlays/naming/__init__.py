"""LCLASS0 and META0+: hints about labels, and the registry of schemas."""
