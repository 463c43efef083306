"""Transactions: of one session, prepared in two phases, leases; large ones in slices."""
