"""The process that sends: `python -m benchmarks.latency.sending FOLDER RATE SECONDS`."""

import sys

from benchmarks.latency.__main__ import send

if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
