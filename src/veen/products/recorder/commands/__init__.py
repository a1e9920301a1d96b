"""`veen recorder`: the server drive recorder (SDR0)."""
