"""config, context, completion, doctor, explain, help, version."""
