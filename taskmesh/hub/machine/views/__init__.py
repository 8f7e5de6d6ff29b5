"""Views of a hub as plain data, for people, and the answers to operators' commands."""
