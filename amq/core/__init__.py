"""Values that every room shares: names, messages, errors. Nothing here does I/O or knows a room."""
