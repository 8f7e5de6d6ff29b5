"""Maps and pipes: items become chunks of tasks, and their results come back in order."""
