"""`veen console`: a log in the browser, served from this machine."""
