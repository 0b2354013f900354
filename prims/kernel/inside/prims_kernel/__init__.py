"""The kernel's side of PRIMS: an ipykernel that runs one piece of code as a script and a notebook cell at once.

User code shares this process, so nothing here is a wall. It makes output complete and ordered, errors readable,
and script habits work. With `--once` the kernel serves one run; without, it is an ordinary notebook kernel.
"""
