"""The client machine: submissions and deliveries. It knows neither the hub's machine nor the pool's."""
