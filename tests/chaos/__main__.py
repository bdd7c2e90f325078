"""`make chaos`: replicas, machines and GitHub break while many jobs run; the outside logs say what came of it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Plan, run_chaos
from tests.support.postgres import start_or_find


def main() -> int:
    """Run once; 1 when anything was lost or happened twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="ptq-chaos-"))
    server = start_or_find(folder, os.getpid())

    async def run() -> bool:
        name = await server.create()
        outcome = await run_chaos(folder, server.url(name), Plan(arguments.seed, arguments.jobs))
        print(outcome.render())
        return outcome.is_clean

    clean = asyncio.run(run())
    if clean and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"the logs are in {folder}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
