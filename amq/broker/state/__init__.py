"""The content of the journal: queues and what is in them, transactions, subscriptions."""
