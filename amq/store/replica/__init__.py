"""The protocol of a replicated store as state machines: messages in, messages and requests out, no I/O, no clock.

Spec and proof: docs/master-slave.md, "A replicated store".

    group       GroupRecord: what the coordinator keeps, and what its numbers mean
    messages    what members say to each other; what a machine asks of the program around it
    keeper      Keeper: one copy of the log, of any member
    stream      LogStream: brings the copies of all members up to one end
    leader      Leader: the master of a term; it confirms, and changes the group
    candidate   Candidate: promise, seal, copy, compare-and-set

The network between the members, which these do not know:

    wire          messages as bytes
    peer_hello    version, group, id and secret, before anything else is read
    peer_socket   one connection: a sender never waits
    peer_conversation  the messages that come on it: read by a thread, or by the event loop of a master
    peer_network  all connections of a member
    roster        who is there, at the coordinator
"""
