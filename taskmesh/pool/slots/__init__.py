"""Slots: a fork server, slots, and the supervisor's side of them (`pool.slots.supervisor.SlotSupervisor`).

Nothing here imports zmq; slots and fork server import nothing else that is heavy.
"""
