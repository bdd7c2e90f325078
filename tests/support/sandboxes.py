"""What this machine allows its jobs. It is tried once for all tests, because each try starts a process."""

from __future__ import annotations

from pathlib import Path

from runner.jobd.sandbox import trial

MISSING = trial.find_missing(Path("/var/tmp"))
"""See `trial.find_missing`."""

SEALED = trial.can_sandbox(MISSING)
"""Whether jobs run in a sandbox."""
