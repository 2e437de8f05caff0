"""``python -m dandelion.span_export FD PARENT``: started by the node."""

import sys

from dandelion.span_export.program import main

sys.exit(main())
