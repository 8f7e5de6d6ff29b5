"""The end of a task at its caller: what it means, and who waits for it."""
