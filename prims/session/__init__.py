"""Sessions: who may reach which workspace, and for how long."""
