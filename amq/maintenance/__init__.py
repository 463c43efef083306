"""What people do to a store by hand while no broker serves it. Invariant: it is changed by its master alone, also here:
each that changes it takes the store's lock, claims it, waits and links an epoch, by docs/master-slave.md.
"""
