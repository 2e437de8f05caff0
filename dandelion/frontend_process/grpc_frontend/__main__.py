"""``python -m dandelion.frontend_process.grpc_frontend``; started by `supervisor`."""

import sys

from dandelion.frontend_process.grpc_frontend.process import GrpcFrontend
from dandelion.frontend_process.process import main

if __name__ == "__main__":
    sys.exit(main(GrpcFrontend))
