"""Transfer: messages that go from this store to another one, and come from others, exactly once."""
