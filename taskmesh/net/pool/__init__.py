"""The pool's shell: sockets, and the machine in a loop. It knows neither the hub's shell nor the client's."""
