"""From a service in the directory to a connection."""
