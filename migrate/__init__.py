"""For users of another broker: its configuration becomes ours, and its queues move. Installed as `amq_migrate`."""
