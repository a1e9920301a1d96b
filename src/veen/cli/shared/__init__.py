"""What commands share: their context, output, names, values, files."""

__all__: list[str] = []
