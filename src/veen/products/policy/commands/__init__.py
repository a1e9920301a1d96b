"""`veen policy`: the policy of a realm."""
