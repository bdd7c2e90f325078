"""The reference of `ptq.toml`: keys and defaults from the models, words from the comments of the example. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from bot.config import Settings
from bot.policy_tables import CapsTable, CapsTables, LimitsTable
from bot.tables import Table
from runner.environment import Limits

_HEADER = re.compile(r"(?:# )?\[+([a-z_]+)(?:\.(?:\"[^\"]*\"|[\w-]+))?(?:\.([a-z]+))?\]+")
_KEY = re.compile(r"(?:# )?([a-z_]+) = (?:\"[^\"]*\"|\[[^\]]*\]|\{.*?\}|[^#\s]+)\s*(?:# (.*))?")

ELSEWHERE = (LimitsTable, CapsTables)
"""Tables that are described once, wherever they may stand."""


def read_words(example: str) -> Mapping[tuple[str, str], str]:
    """What the example says of each key, by table and key."""
    words: dict[tuple[str, str], str] = {}
    table = ""
    for line in example.splitlines():
        if header := _HEADER.match(line):
            table = f"{header[1]}.{header[2]}" if header[2] and header[1] != "caps" else header[1]
        elif (key := _KEY.match(line)) and key[2]:
            words.setdefault((table, key[1]), key[2])
    return words


def render_manual(example: str) -> str:
    """All tables, in the order of the models."""
    words = read_words(example)
    return "\n".join(part for name, field in Settings.model_fields.items() for part in _render(name, field, words))


def _render(name: str, field: FieldInfo, words: Mapping[tuple[str, str], str]) -> Iterator[str]:
    model = _find_model(field.annotation)
    assert model
    yield from _render_table(name, _title(name, field), model, words)
    for key, inner in model.model_fields.items():
        found = _find_model(inner.annotation)
        if found and found not in ELSEWHERE and model is not CapsTables:
            yield from _render_table(f"{name}.{key}", f"[{_title(name, field).strip('[]')}.{key}]", found, words)


def _render_table(place: str, title: str, model: type[Table], words: Mapping[tuple[str, str], str]) -> Iterator[str]:
    about = " ".join((model.__doc__ or "").split()).partition(": ")[2] or (model.__doc__ or "")
    fields = CapsTable.model_fields if model is CapsTables else model.model_fields
    yield f"## `{title}`\n\n{about[:1].upper()}{about[1:]}\n\n| key | default | what it says |\n|---|---|---|"
    for key, field in fields.items():
        said = words.get((place, key), "").replace("|", "\\|")
        yield f"| `{key}` | {_default(key, field, model)} | {said} |"
    yield ""


def _title(name: str, field: FieldInfo) -> str:
    if name == "caps":
        return "[caps.SCOPE]"
    if name == "repos":
        return '[repos."OWNER/NAME"]'
    origin = get_origin(field.annotation)
    return f"[[{name}]]" if origin is tuple else f"[{name}.NAME]" if origin is dict else f"[{name}]"


def _default(key: str, field: FieldInfo, model: type[Table]) -> str:
    if field.is_required():
        return "required"
    value = getattr(Limits(), key) if model is LimitsTable else field.get_default(call_default_factory=True)
    if value is None or isinstance(value, Table):
        return ""
    shown = sorted(value) if isinstance(value, frozenset) else str(value) if isinstance(value, Path) else value
    return f"`{json.dumps(shown, ensure_ascii=False)}`"


def _find_model(annotation: Any) -> type[Table] | None:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _find_model(inner))), None)
