"""What the store does when there is much of it: backlogs of millions, disk space under traffic, a slave that follows.

`python -m bench.scale --help`. Looks at the brokers from outside only: processes, STOMP, `amq` commands, /proc, files.
"""
