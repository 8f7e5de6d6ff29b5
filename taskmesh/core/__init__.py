"""The machines: pure state, events in, actions out. No sockets, clocks, threads, chance or logging."""
