"""Topics and their subscriptions: plain, durable, retroactive, of several queues; where a message goes."""
