"""The port of a client: its machine in a loop, and the link to a hub."""
