"""Environments and kernels: layers, the throw-away venv, the kernel and what it publishes."""
