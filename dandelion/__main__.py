"""``dandelion`` and ``python -m dandelion``."""

import sys

from dandelion.interrupts import ended_by_interrupts

with ended_by_interrupts():
    from dandelion.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
