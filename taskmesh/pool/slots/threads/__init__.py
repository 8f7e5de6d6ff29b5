"""Slots as threads of processes that they share (docs/adr/0053)."""
