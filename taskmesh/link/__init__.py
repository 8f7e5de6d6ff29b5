"""The link between two machines: numbered messages, how it is dialled, a machine in a loop."""
