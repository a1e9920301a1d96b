"""What the user configured: contexts and defaults in files, variables, and how one command or program resolves them."""
