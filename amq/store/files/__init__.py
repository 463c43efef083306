"""A store in a directory, which may be on a network file system."""
