"""Slots: a fork server, slots, and the supervisor's side of them (`taskmesh.pool.supervisor.SlotSupervisor`).

Nothing here imports zmq; slots and fork server import nothing else that is heavy.
"""
