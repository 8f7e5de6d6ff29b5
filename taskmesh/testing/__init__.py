"""Tools for tests: the simulated mesh."""

from taskmesh.testing.simulation import Report, SimulationFailure, World

__all__ = ["Report", "SimulationFailure", "World"]
