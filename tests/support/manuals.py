"""Documents whose last part is made from the code."""

from __future__ import annotations

import os
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def check_manual(name: str, source: str, made: str) -> str:
    """Hold what stands below the mark of a document against what is made now; returns the document.

    `source` is what the mark says that it is made from. With `PTQ_REWRITE_DOCS=1` it is written there.
    """
    path, mark = DOCS / name, f"<!-- The rest is made from {source}. -->\n"
    head, found, _ = path.read_text().partition(mark)
    assert found, f"{name} has no line {mark}"
    whole = f"{head}{mark}\n{made.rstrip()}\n"
    if os.environ.get("PTQ_REWRITE_DOCS"):
        path.write_text(whole)
    assert path.read_text() == whole, "rewrite it: run this test with PTQ_REWRITE_DOCS=1"
    return whole
