"""The journal of a hub: keys and values that outlive it, in a file or in Redis, written by a thread."""
