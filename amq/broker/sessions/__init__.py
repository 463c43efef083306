"""Sessions: the things that one connection may ask, and those that it has outstanding."""
