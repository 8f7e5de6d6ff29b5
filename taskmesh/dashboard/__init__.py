"""The dashboard: a program of its own that shows a mesh in browsers (docs/adr/0046-dashboard.md)."""
