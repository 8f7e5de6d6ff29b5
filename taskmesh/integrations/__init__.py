"""Middleware for libraries that observe programs: each module needs the library in its name."""
