"""Finds scripts in an issue that reproduce a bug: fenced code blocks that import the project. Pure.

A block's language tag is not trusted.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from handlers.text.hidden_text import FAR, count_certain_lines
from handlers.text.markdown import parse_blocks
from runner.checks.python_source import parse

THE_ISSUE = "the issue"
"""The origin of scripts in the issue's text."""

MAX_REPROS = 10
MAX_CODE = 6_000
"""The most characters of a script. A longer one is not a minimal repro, and is ignored."""

_PYTHON = frozenset({"python", "python3", "py", "py3", "pycon", "ipython", "ipython3", "doctest"})
"""Language tags for Python."""

_IMPORT_LINE = re.compile(r"^[ \t]*+(?:from[ \t]++(\w++)[\w.]*+[ \t]++import\b|import[ \t]++(\w++))", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?: |$)")


@dataclass(frozen=True, slots=True)
class ReproScript:
    """A script that may reproduce the bug. `origin` says where it is from, such as `comment by alice`."""

    origin: str
    language: str
    code: str


def extract_repros(texts: Iterable[tuple[str, str]], import_names: Sequence[str]) -> tuple[ReproScript, ...]:
    """The first `MAX_REPROS` scripts in Markdown texts, without repeated ones. `texts` are pairs of origin and text.

    `import_names` are the project's top-level modules. Without them, any Python import counts.
    """
    scripts: dict[str, ReproScript] = {}
    for origin, text in texts:
        for code in _read_scripts(text):
            if len(code) <= MAX_CODE and _imports_any(code, import_names):
                scripts.setdefault(code, ReproScript(origin, "python", code))
    return tuple(scripts.values())[:MAX_REPROS]


def _read_scripts(text: str) -> Iterator[str]:
    """The Python code of every visible fenced block, at any depth in lists and quotes."""
    if "```" not in text and "~~~" not in text:
        return
    certain = count_certain_lines(text)
    for token in parse_blocks(text):
        if token.type == "fence" and token.map and token.map[0] < certain:
            code = _read_code(token.content)
            # Readers do not look for code that is far to the right or far below, so it is not run.
            if FAR in code:
                continue
            if _claims_python(token.info) or _parse_python(code):
                yield code


def _claims_python(info: str) -> bool:
    return bool(_PYTHON & set(re.split(r"[^\w]+", info.lower(), maxsplit=1)[:1]))


def _read_code(block: str) -> str:
    """The code of a block. If the block is a doctest transcript, only its input."""
    lines = block.split("\n")
    if any(line.lstrip().startswith(">>>") for line in lines):
        lines = [_PROMPT.sub("", line) for line in lines if _PROMPT.match(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def _imports_any(code: str, import_names: Sequence[str]) -> bool:
    imported = _find_imports(code)
    return bool(imported & set(import_names)) if import_names else bool(imported)


def _find_imports(code: str) -> set[str]:
    """The top-level modules that the code imports, even if it is not valid Python (`...`, `%timeit`)."""
    tree = _parse_python(code)
    if tree is None:
        return {first or second for first, second in _IMPORT_LINE.findall(code)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _parse_python(code: str) -> ast.Module | None:
    return parse(code) if len(code) <= MAX_CODE else None
