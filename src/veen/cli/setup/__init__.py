"""config, context, completion, doctor, explain, help, version."""

__all__: list[str] = []
