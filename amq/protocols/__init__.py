"""Protocols: bytes to commands and commands to bytes, without I/O and without a clock."""
