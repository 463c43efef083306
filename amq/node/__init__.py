"""One broker process: its role, its mastership, and what it knows of the other brokers of its store."""
