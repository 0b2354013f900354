"""`python -m prims`."""

from prims.cli import main

raise SystemExit(main())
