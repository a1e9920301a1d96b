"""The user's configuration: contexts and defaults in files and variables, and their resolution for one command or
program."""
