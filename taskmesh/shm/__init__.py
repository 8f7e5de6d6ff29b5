"""Memory files: large payloads that pass between the processes of one machine as descriptors."""
