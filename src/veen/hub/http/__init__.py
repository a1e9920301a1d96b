"""HTTP/1.1 over TCP and TLS: listener, connections, and bounds against strangers."""
