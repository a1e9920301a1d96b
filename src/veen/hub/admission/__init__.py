"""Admission of messages: the ranked checks and the views that they use."""
