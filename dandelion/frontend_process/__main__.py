"""``python -m dandelion.frontend_process``; started by `supervisor`."""

import sys

from dandelion.frontend_process.process import main

if __name__ == "__main__":
    sys.exit(main())
