"""Commands of `veen hub`."""
