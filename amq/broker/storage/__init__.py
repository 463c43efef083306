"""Space: segments are given back, live records copied forward, checkpoints written."""
