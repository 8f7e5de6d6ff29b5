"""Hosts of a mesh's hub and slots: a thread of the program, a child process, or other programs."""
