"""The broker: destinations, transactions, subscriptions and sessions over the journal, without sockets."""
