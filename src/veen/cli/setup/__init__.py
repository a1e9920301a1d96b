"""Commands of this machine: config, context, completion, doctor, docs, explain, help, agent, keystore, version."""
