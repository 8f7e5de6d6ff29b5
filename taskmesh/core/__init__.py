"""Shared by the machines of hub, pool and client. No sockets, clocks, threads, chance or logging."""
