"""The pool machine: memberships, scheduler, slots. It knows neither the hub's machine nor the client's."""
