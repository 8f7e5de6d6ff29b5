"""taskmesh measured against raw pyzmq and its peers; `python -m benchmarks --help` tells how."""
