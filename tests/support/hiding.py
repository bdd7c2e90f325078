"""A process that does what it can not to be found, for tests of who is alive at the end."""

from __future__ import annotations

HIDES = """
import os, signal, sys, time
os.setsid()
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]])
"""
"""A tool that leaves its parent and its session twice, and ignores what can be ignored."""
