"""A link: one socket between a gateway and the master of a store, which carries the connections of many clients.

It speaks the contract of `amq.protocols.commands` and `amq.broker.recipient.Recipient` in binary frames. Spec:
docs/link-protocol.md.
"""
