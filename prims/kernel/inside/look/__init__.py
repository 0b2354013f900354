"""Looks at one file of strangers and says what it is. Runs inside the sandbox, see `__main__`.

Standard library only where this is possible, and of that only what starts quickly: no dataclasses, no typing.
"""
