"""veen demo."""
