"""The demo's agent: a script, not a model. It can only fix one bug, but really does every step of an agent.

It reads the repro from its brief, runs it, edits the code, runs the repro and the tests, and writes the files that the
contract for agents of kind `command` requires. It runs on the machine, and only needs the standard library.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

OUTPUT = Path(os.environ["PTQ_OUTPUT_DIR"])
REPRO = OUTPUT / "repro.py"
SOURCE = Path("widgets/chunks.py")
BUG = "range(0, len(items) - size + 1, size)"
FIX = "range(0, len(items), size)"

TEST = """
    def test_the_last_chunk_may_be_shorter(self):
        self.assertEqual(list(chunked([1, 2, 3, 4, 5], 2)), [[1, 2], [3, 4], [5]])
"""

REPORT = """\
{outcome}

## Summary
`chunked()` drops the last items when the length is no multiple of the size. {change_summary}

## Reproduction
The issue's script, unchanged, is `repro.py`. Before any edit it ended with:

```
{before}
```

## Root cause
`widgets/chunks.py` stops its `range` at `len(items) - size + 1`, which is the last start of a *full* chunk. The start
of a shorter last chunk lies beyond it, so that chunk is never yielded.
{rest}"""

REST = """
## Change and why it is right
The range now ends at `len(items)`: every start that has at least one item is visited, and slicing past the end is
safe. Lengths that are a multiple of the size give the same chunks as before.

## Test
`test_the_last_chunk_may_be_shorter` fails without the change and passes with it. All tests afterwards:

```
{tests}
```
"""


def say(text: str) -> None:
    """Print a step to the log, and add it to the worklog."""
    print(text, flush=True)
    with (OUTPUT / "worklog.md").open("a") as worklog:
        worklog.write(f"- {text}\n")


def run(*command: str) -> tuple[int, str]:
    """Run a command in the worktree. Returns its exit status, and its output with the errors."""
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def last_lines(text: str, count: int = 4) -> str:
    """The end of a command's output, without the machine's paths."""
    return re.sub(r'File ".*?/(\w+\.py)"', r'File "\1"', "\n".join(text.splitlines()[-count:]))


def reproduce() -> str:
    """Run the repro from the brief, and return its output, which ends with the exception.

    If there is no repro, or it does not fail, write the report and exit.
    """
    brief = Path(os.environ["PTQ_PROMPT_FILE"]).read_text()
    blocks = re.findall(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)^[ \t]*\1", brief, flags=re.DOTALL | re.MULTILINE)
    scripts = [text for _, text in blocks if "from widgets import" in text]
    if not scripts:
        say("The brief holds no script that uses the package: no repro, no fix.")
        (OUTPUT / "report.md").write_text("needs a repro\n\n## Summary\nThe issue has no script to run.\n")
        sys.exit(0)
    REPRO.write_text(scripts[0])
    status, printed = run(sys.executable, str(REPRO))
    say(f"Ran the issue's script: exit status {status}, {printed.splitlines()[-1] if printed else 'no output'}")
    if status == 0:
        (OUTPUT / "report.md").write_text("does not reproduce\n\n## Summary\nThe issue's script passes.\n")
        sys.exit(0)
    return printed


def fix() -> str:
    """Add the regression test, fix the bug, and run the repro and the tests again. Returns the output of the tests."""
    source = SOURCE.read_text()
    tests = Path("tests/test_chunks.py")
    tests.write_text(tests.read_text() + TEST)
    failing, _ = run(sys.executable, "-m", "unittest")
    say(f"Added a regression test: the tests end with status {failing} before the change")
    SOURCE.write_text(source.replace(BUG, FIX))
    say(f"Edited {SOURCE}: the range now ends at len(items)")
    status, _ = run(sys.executable, str(REPRO))
    say(f"Ran the issue's script again: exit status {status}")
    passing, printed = run(sys.executable, "-m", "unittest")
    say(f"Ran all tests: exit status {passing}")
    return printed


def main() -> None:
    """Reproduce the bug, and with the preset `fix` also fix it."""
    before = last_lines(reproduce())
    say(f"Found the cause in {SOURCE}: {BUG} leaves out the start of a shorter last chunk")
    if os.environ.get("PTQ_PRESET") == "fix":
        rest = REST.format(tests=last_lines(fix()))
        outcome, change_summary = "fix staged", "The range in `widgets/chunks.py` now covers it, with a test."
        (OUTPUT / "pr_title.txt").write_text("Keep the last, shorter chunk in chunked()\n")
    else:
        rest, outcome, change_summary = "", "reproduced", "No file was changed."
    report = REPORT.format(outcome=outcome, change_summary=change_summary, before=before, rest=rest)
    (OUTPUT / "report.md").write_text(report)
    say("Wrote the report")


main()
