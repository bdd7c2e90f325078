"""The reference of `ptq.toml`: keys and defaults from the models, words from the comments of the example. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from bot.config.policy_tables import CapsTable, CapsTables, LimitsTable, read_profiles
from bot.config.settings import Settings
from bot.config.tables import Table
from runner.agents import BACKENDS
from runner.model.environment import Limits

_HEADER = re.compile(r"(?:# )?\[+([a-z_]+)(?:\.(\"[^\"]*\"|[\w-]+))?(?:\.([a-z_]+))?\]+\s*(?:# (.*))?")
_KEY = re.compile(r"(?:# )?([a-z_]+) = (?:\"[^\"]*\"|\[[^\]]*\]|\{.*\}|[^#\s]+)\s*(?:# (.*))?")

_DOCUMENT = re.compile(r"docs/([a-z-]+)\.md(#[a-z-]+)?")

ELSEWHERE = (LimitsTable, CapsTables)
"""Tables that are described once, wherever they may stand."""

CHOICES: Mapping[tuple[str, str], Sequence[str]] = {
    ("agents", "kind"): [*BACKENDS],
    ("repos", "profile"): [*read_profiles()],
}
"""Values that no type lists."""


def read_words(example: str) -> Mapping[tuple[str, str], str]:
    """What the example says of each key, by table and key; of an inner table and of a scope its head says it."""
    words: dict[tuple[str, str], str] = {}
    table = ""
    for line in example.splitlines():
        if header := _HEADER.match(line):
            name, which, inner, said = header.groups()
            table = f"{name}.{inner}" if inner else name
            if inner or name == "caps":
                words.setdefault((name, inner or which), said or "")
        elif (key := _KEY.match(line)) and key[2]:
            words.setdefault((table, key[1]), key[2])
    return words


def render_manual(example: str) -> str:
    """All tables, in the order of the models."""
    words = read_words(example)
    return "\n".join(part for place, title, model in _walk() for part in _render_table(place, title, model, words))


def find_unnamed(example: str) -> Sequence[str]:
    """The values that a key may have, and that neither its words nor its default name."""
    words = read_words(example)
    return [
        f"{place}.{key}: {choice}"
        for place, _, model in _walk()
        for key, field in model.model_fields.items()
        for choice in CHOICES.get((place, key), _list_choices(field.annotation))
        if f'"{choice}"' not in f"{words.get((place, key), '')} {_default(key, field, model)}"
    ]


def _walk() -> Iterator[tuple[str, str, type[Table]]]:
    """Each table with its place and title."""
    for name, field in Settings.model_fields.items():
        model = _find_model(field.annotation)
        assert model
        yield name, _title(name, field), model
        for key, inner in model.model_fields.items():
            found = _find_model(inner.annotation)
            if found and found not in ELSEWHERE and model is not CapsTables:
                yield f"{name}.{key}", f"[{_title(name, field).strip('[]')}.{key}]", found


def _list_choices(annotation: Any) -> Sequence[str]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return [choice for inner in get_args(annotation) for choice in _list_choices(inner)]


def _render_table(place: str, title: str, model: type[Table], words: Mapping[tuple[str, str], str]) -> Iterator[str]:
    about = " ".join((model.__doc__ or "").split()).partition(": ")[2] or (model.__doc__ or "")
    fields = CapsTable.model_fields if model is CapsTables else model.model_fields
    yield f"## `{title}`\n\n{about[:1].upper()}{about[1:]}\n"
    if model is CapsTables:
        yield "| scope | what belongs to it |\n|---|---|"
        yield from (f"| `{scope}` | {_say(words, place, scope)} |" for scope in model.model_fields)
        yield ""
    yield "| key | default | what it says |\n|---|---|---|"
    for key, field in fields.items():
        name = field.alias or key
        yield f"| `{name}` | {_default(key, field, model)} | {_say(words, place, name)} |"
    yield ""


def _say(words: Mapping[tuple[str, str], str], place: str, key: str) -> str:
    """The words as a cell: what is required stands in another one, and a document is a page beside this one."""
    said = words.get((place, key), "").removeprefix("required: ").replace("|", "\\|")
    return _DOCUMENT.sub(r"[\1](\1.md\2)", said)


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
        return "–"
    shown = sorted(value) if isinstance(value, frozenset) else str(value) if isinstance(value, Path) else value
    return f"`{json.dumps(shown, ensure_ascii=False)}`"


def _find_model(annotation: Any) -> type[Table] | None:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _find_model(inner))), None)
