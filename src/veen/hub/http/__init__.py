"""HTTP/1.1 over TCP and TLS: listener, connection, bounds against strangers."""
