"""Is a directory, or a database, fit to be a store? Callers begin at `amq.doctor.stores`. Nothing is imported here: the
child process of an examination needs its hands alone, and starts in a fifth of the processor time.

Invariant: what is tried is tried through the same `Vfs` that the broker uses, on files of its own; no file of a store
is opened, and nothing stays behind.
"""
