"""``dandelion`` and ``python -m dandelion``."""

import sys

from dandelion.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
