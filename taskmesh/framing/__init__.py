"""Messages and payloads as the bytes of a link. Imports no pickle: the hub uses it."""
