"""The hub: sockets, journal and limits of the process around its machine."""
