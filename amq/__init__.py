"""amq: a message broker for two or three machines that share a file system.

Identical brokers race for an exclusive lock on a shared store; the winner (master) replays the journal and opens its
transports, the others (slaves) wait; clients find the master through a failover URL.
"""

__version__ = "0.1.0"
