"""A witness of transparency logs (C2SP tlog-witness), and a monitor of the outer logs of hubs."""
