"""The hub's shell: sockets, and the machine in a loop. It knows neither the pool's shell nor the client's."""
