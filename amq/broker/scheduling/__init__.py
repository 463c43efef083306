"""Messages that are delivered later, or again and again."""
