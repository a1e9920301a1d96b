"""AGB0: messages that an air-gap bridge writes into logs."""
