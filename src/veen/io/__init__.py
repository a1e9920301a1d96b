"""Every door to the outside: files, addresses, TLS, NATS, QUIC, listeners, metrics text, notifications of systemd."""
