"""Look at one file and print what it is as one JSON object.

Runs as `<python> -I -S /kernel/look/__main__.py QUESTION_JSON`, with the file's folder shown read-only. Nothing that
the file holds can make it print anything else: whatever goes wrong becomes a note in the answer.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from look.judge import main

del sys.path[0]

if __name__ == "__main__":
    main(sys.argv[1])
