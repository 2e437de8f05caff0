"""``python -m dandelion.frontend.conversion``; started by `converter`."""

import sys

from dandelion.frontend.conversion.process import main

if __name__ == "__main__":
    sys.exit(main())
