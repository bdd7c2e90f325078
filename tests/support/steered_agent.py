"""An agent with the command line of Claude Code, whose sessions are resumed. It notes what each process is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.world import FIX, WRITE_REPORT

SCRIPT = (
    WRITE_REPORT
    + """
import json, signal
signs = pathlib.Path({signs!r})
def say(**entry):
    print(json.dumps(entry), flush=True)
def end(subtype, status):
    used = {{"inputTokens": 100, "outputTokens": 10}}
    say(type="result", subtype=subtype, is_error=bool(status), total_cost_usd=0.25, modelUsage={{"m": used}})
    sys.exit(status)
signal.signal(signal.SIGINT, lambda *_: end("error_during_execution", 1))
option = "--resume" if "--resume" in sys.argv else "--session-id"
session, words = sys.argv[sys.argv.index(option) + 1], sys.stdin.read()
with (signs / "heard").open("a") as heard:
    heard.write(json.dumps([option, session, words]) + "\\n")
say(type="system", subtype="init", session_id=session, model="m")
usage = {{"input_tokens": 100, "output_tokens": 10}}
answer = {{"id": f"msg_{{time.time_ns()}}", "content": [{{"type": "text", "text": "Well."}}], "usage": usage}}
say(type="assistant", message=answer)
if "Finish now" not in words:
    time.sleep(90)
"""
    + FIX.replace("{", "{{").replace("}", "}}")
    + 'end("success", 0)\n'
)


def describe_steered_agent(folder: Path) -> str:
    """It as a table of the configuration, with the name `steered`."""
    script = folder / "steered.py"
    script.write_text(SCRIPT.format(signs=str(folder / "signs")))
    return f'[agents.steered]\nkind = "claude"\ncommand = {json.dumps([sys.executable, str(script)])}\n\n'


def read_heard(folder: Path) -> list[tuple[str, str, str]]:
    """For each of its processes: how its session began, the session, and what it was told."""
    file = folder / "signs" / "heard"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]
