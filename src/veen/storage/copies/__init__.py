"""Copies of a data directory: clone, fork, archive, and the mark of one that is not finished."""
