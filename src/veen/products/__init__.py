"""Products built on a hub and its clients: the recorder (SDR0) and the air-gap bridge (AGB0)."""
