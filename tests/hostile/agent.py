"""The agent of `make hostile`: all that it writes is the text of its issue's case."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

MAX_TITLE = 60_000

found = re.search(r"\[case ([0-9]+)\]", Path(os.environ["PTQ_PROMPT_FILE"]).read_text())
assert found
text = json.loads(Path("hostile", f"{found[1]}.json").read_text())
raw = text.encode(errors="replace")
sys.stdout.buffer.write(raw + b"\n")
sys.stdout.buffer.flush()
output = Path(os.environ["PTQ_OUTPUT_DIR"])
(output / "report.md").write_bytes(b"fix staged\n\n## Summary\n" + raw + b"\n\n## Root cause\n" + raw)
(output / "worklog.md").write_bytes(raw)
(output / "pr_title.txt").write_bytes(raw[:MAX_TITLE])
(output / "repro.py").write_bytes(raw)
Path("widgets", "hostile.txt").write_bytes(raw)
