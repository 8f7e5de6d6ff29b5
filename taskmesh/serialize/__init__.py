"""Functions, arguments, results and exceptions as payloads, and back: the code that unpickles."""
