"""Bytes to messages and back: pure, without sockets or clocks."""
