"""The air-gap bridge (AGB0): events that cross from one zone to another with their evidence (001 products §4)."""
