"""Hosts of a mesh: a thread of the program, a child process, or programs elsewhere have its hub and slots."""
