"""The end of a task at its caller: its outcome and its waiters."""
