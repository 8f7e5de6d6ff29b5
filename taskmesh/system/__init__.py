"""What is asked of the operating system: clock, CPUs, control groups, descriptors, processes, signals."""
