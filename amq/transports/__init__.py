"""Transports: sockets of clients, the turns of the event loop that serve them, and the lease gate."""
