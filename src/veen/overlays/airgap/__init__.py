"""What an air-gap bridge writes into logs (AGB0)."""
