"""The client behind the public names: pending table, callbacks, functions, maps, waiting."""
