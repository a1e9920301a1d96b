"""The objects of the wire, one topic a module."""
