"""Clients' connections in a process that has no store: what each asks for goes to the stores that have it."""
