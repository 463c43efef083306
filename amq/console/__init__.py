"""Console: one process for each host beside its broker, which serves REST, metrics and probes over TCP.

It takes everything from the broker's management socket and from the store. So it goes on when the broker hangs, and
says so. Invariant: nothing here runs in the broker's process, and a user has the rights that the broker gives.
"""
