"""Asks `/healthz` again and again, until it is ended; then it prints when it asked and how long each answer took.

A process of its own: what plays the texts is busy too, and would measure itself.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from http.client import HTTPConnection

PAUSE_S = 0.02
PATIENCE_S = 60.0


def main() -> None:
    """Ask the port that the command line names."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    took: list[tuple[float, float]] = []
    while not ended:
        connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=PATIENCE_S)
        asked_at = time.monotonic()
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except OSError:
            took.append((asked_at, PATIENCE_S))
        else:
            took.append((asked_at, time.monotonic() - asked_at))
        finally:
            connection.close()
        time.sleep(PAUSE_S)
    json.dump(took, sys.stdout)


if __name__ == "__main__":
    main()
