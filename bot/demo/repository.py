"""The demo's repository: a small Python package with a real bug, and the issue that reports it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

NAME = "octo/widgets"
BRANCH = "main"

ISSUE_TITLE = "chunked() drops the last chunk when it is shorter"

ISSUE_BODY = """\
`chunked()` loses data when the length is no multiple of the size:

```python
from widgets import chunked

chunks = list(chunked([1, 2, 3, 4, 5], 2))
assert chunks == [[1, 2], [3, 4], [5]], chunks
```

I expected `[[1, 2], [3, 4], [5]]` and got `[[1, 2], [3, 4]]`. Version 1.4, Python 3.11.
"""

FILES = {
    "README.md": "# widgets\n\nSmall tools for sequences.\n",
    "widgets/__init__.py": '''\
"""Small tools for sequences."""

from widgets.chunks import chunked

__all__ = ["chunked"]
''',
    "widgets/chunks.py": '''\
"""Cutting sequences into pieces."""


def chunked(items, size):
    """Yield the items in lists of `size`; the last may be shorter."""
    if size < 1:
        raise ValueError("size must be at least 1")
    for start in range(0, len(items) - size + 1, size):
        yield items[start : start + size]
''',
    "tests/__init__.py": "",
    "tests/test_chunks.py": """\
import unittest

from widgets import chunked


class ChunkedTest(unittest.TestCase):
    def test_a_multiple_of_the_size_is_cut_evenly(self):
        self.assertEqual(list(chunked([1, 2, 3, 4], 2)), [[1, 2], [3, 4]])

    def test_a_size_below_one_is_refused(self):
        with self.assertRaises(ValueError):
            list(chunked([1], 0))
""",
}


def make_repository(git_dir: Path) -> str:
    """Create a bare repository with one commit on `BRANCH`, and return the commit's SHA."""
    git_dir.mkdir(parents=True)
    _git(git_dir, "init", "--quiet", "--bare", f"--initial-branch={BRANCH}")
    now = int(time.time())
    commit = f"commit refs/heads/{BRANCH}\ncommitter Octo <octo@example.org> {now} +0000\n"
    files = "".join(f"M 644 inline {name}\n{_data(text)}" for name, text in FILES.items())
    _git(git_dir, "fast-import", "--quiet", told=commit + _data("Small tools for sequences\n") + files)
    return _git(git_dir, "rev-parse", BRANCH)


def _data(text: str) -> str:
    """A text as `git fast-import` reads one."""
    return f"data {len(text.encode())}\n{text}\n"


def _git(git_dir: Path, *arguments: str, told: str = "") -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=git_dir, check=True, capture_output=True, text=True, input=told).stdout.strip()
