"""`veen recorder`: the server drive recorder (SDR0)."""

__all__: list[str] = []
