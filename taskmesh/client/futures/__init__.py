"""Futures: their outcomes, who waits for them, and how they end together."""
