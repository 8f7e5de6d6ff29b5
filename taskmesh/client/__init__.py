"""What stands behind the client surface: pending table, delivery, spec table, chunks, gatherings."""
