"""A hook of MkDocs: files beside `docs/` that documents link to are on the site too.

On GitHub such a link leads out of the folder, `../app.yml`; the site has nothing above its root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BESIDE = ("app.yml", "ptq.example.toml")
_LINK = re.compile(rf"\]\(\.\./({'|'.join(map(re.escape, BESIDE))})\)")


def on_files(files: Files, config: Any) -> Files:
    """Put them at the site's root."""
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let the links lead there."""
    return _LINK.sub(r"](\1)", markdown)
