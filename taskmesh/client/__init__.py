"""What stands behind the client surface: pending table, callbacks, spec table, chunks, gatherings."""
