"""The operating system: clock, CPUs, control groups, descriptors, processes, signals."""
