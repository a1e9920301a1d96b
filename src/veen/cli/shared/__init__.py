"""Shared code of commands: their context, output, names, values, files."""
