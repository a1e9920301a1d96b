"""The door to files: a directory of this machine, or a place that Arrow can reach; descriptors, and private files."""
