"""The client's shell: sockets, and the machine in a loop. It knows neither the hub's shell nor the pool's."""
