"""Figures of what a hub's tasks do, for people and metrics: nothing is decided by them."""
