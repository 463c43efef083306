"""The journal: what is durable, as records in segments, how they are written together, read and compacted."""
