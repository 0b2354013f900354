"""The walls around one kernel, and the proof that they hold on this machine."""
