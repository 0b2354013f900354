"""Start the kernel. Runs inside the sandbox, on the venv's Python, with `-I`: no cwd and no PYTHON* variables.

Everything in this folder is what the sandbox sees as its kernel files. It must import nothing of `prims`.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from prims_kernel.app import main

del sys.path[0]

if __name__ == "__main__":
    main(sys.argv[1:])
