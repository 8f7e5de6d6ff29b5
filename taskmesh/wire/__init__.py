"""Messages: pure data. Nothing here opens, unpickles or decodes anything."""
