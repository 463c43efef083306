"""A cluster: several stores in one directory, and nodes that are each a member of every store."""
