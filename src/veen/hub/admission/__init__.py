"""Whether a message is admitted: the ranked rules and the views that they ask."""
