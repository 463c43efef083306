"""A small client of OpenWire: enough to list the queues of a broker, ActiveMQ or ours, and to move them to another.

Programs use `amq.client`, which speaks STOMP; this is what `amq migrate` consists of.
"""
