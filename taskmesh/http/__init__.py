"""The side port: probes, metrics and a drain over HTTP."""
