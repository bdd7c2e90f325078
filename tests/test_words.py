"""Old-fashioned words stay out of documents, pages, messages and help. The test is a net; a reader is the judge."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OLD = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|anew|afresh|who(?:m|so)?ever|whom|where(?:of|by|upon)|there(?:by|of|in|upon|with)|here(?:in|of|by)"
    r"|whence|whither|hence(?:forth)?|thus|hitherto|albeit|heed(?:s|ed)?|forsooth|lest|amid(?:st)?|whilst|upon|nay|unto"
    r"|of\s+which|stands?\s+for|reckon(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
"""What documents quote."""


def read_strings(path: Path) -> Iterator[str]:
    """The texts in a program, without its docstrings. Those of commands are their help."""
    tree = ast.parse(path.read_text())
    silent = (
        {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)} if path.parent.name != "cli" else set()
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in silent:
            yield node.value


def read_texts() -> Iterator[tuple[Path, str]]:
    """Everything that people read."""
    for path in (ROOT / "README.md", ROOT / "ptq.example.toml", *(ROOT / "docs").glob("*.md")):
        yield path, CODE.sub("", path.read_text())
    for package in ("bot", "handlers", "runner"):
        for path in (ROOT / package).rglob("*.*"):
            if path.suffix in (".html", ".js"):
                yield path, path.read_text()
            elif path.suffix == ".py" and OLD.search(path.read_text()):  # Parsing takes long.
                yield path, "\n".join(read_strings(path))


def test_no_text_for_people_has_an_old_fashioned_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text[max(0, word.start() - 40) : word.end() + 20]!r}"
        for path, text in read_texts()
        for word in OLD.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("text", ["It is mended.", "Runs of\nwhich nobody knows.", "Whoever asks", "`…` stands for it"])
def test_old_fashioned_words_are_found(text: str) -> None:
    assert OLD.search(CODE.sub("", text))


def test_only_texts_for_people_are_read(tmp_path: Path) -> None:
    for folder, seen in (("handlers", ["said"]), ("cli", ["help", "said"])):
        path = tmp_path / folder / "file.py"
        path.parent.mkdir()
        path.write_text('"""help"""\nWORDS = "said"\n')
        assert sorted(read_strings(path)) == seen
