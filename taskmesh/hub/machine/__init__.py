"""The hub machine: ledger, ventilator, collector. It knows neither the pool's machine nor the client's."""
