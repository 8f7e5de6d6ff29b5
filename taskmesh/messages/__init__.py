"""Messages: their structs, which are pure data, and their frames. Nothing here unpickles anything."""
