"""Maintenance of a store by hand, while no broker serves it. Invariant: only the master changes a store, also here.
Each operation takes the lock, claims the store, waits and links an epoch, as docs/master-slave.md demands.
"""
