"""Queues: messages in order, their consumers, what waits on disk, what is too much, what failed."""
