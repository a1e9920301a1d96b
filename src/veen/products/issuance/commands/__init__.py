"""Commands that lead from a service in the directory to a connection."""
