"""Shells around the core's machines: they perform actions, and turn what arrives into events."""
