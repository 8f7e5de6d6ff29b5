"""The pool: sockets, start and limits of the process around its machine, and its slots."""
