"""The content of the journal: queues and what stands in them, transactions, subscriptions."""
