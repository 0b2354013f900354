"""Become a command that finds the network's proxy, if there is one. Runs inside the walls on the base interpreter.

Arguments: the folder of the proxy's socket, then the command.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from prims_kernel import network

if __name__ == "__main__":
    network.begin(os.getcwd(), sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
