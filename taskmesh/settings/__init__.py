"""Settings: their types and bounds, how a value is read, and the sources of a program's settings."""
