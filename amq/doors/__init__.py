"""The doors to the outside that the simulation replaces: clock, threads, TLS."""
