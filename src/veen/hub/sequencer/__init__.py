"""The thread that orders messages: verification before it, one group for each sync after it."""
