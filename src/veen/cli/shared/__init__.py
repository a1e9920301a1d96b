"""What commands share: their context, output, names, values, files."""
