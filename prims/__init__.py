"""PRIMS: run Python for agents in a fresh, sandboxed, throw-away Jupyter kernel."""

__version__ = "0.1.0"
