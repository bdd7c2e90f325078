"""The reference of the command line, from the commands themselves; and what documents tell people to type. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException
from typer.main import get_command

from bot.cli.main import app
from bot.cli.options import find_config

PROGRAM = "ptq-bot"
PLACEHOLDERS: Mapping[type, str] = {Path: "FILE", int: "N", float: "N", datetime: "YYYY-MM-DD"}
_FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(ptq-bot\s[^`]+)`")


@dataclass(frozen=True)
class Typed:
    """What a document says is typed, without the program's name. A line of a code block is whole."""

    words: tuple[str, ...]
    is_whole: bool


@cache
def list_commands() -> Mapping[str, TyperCommand]:
    """Every command by what is typed, in the order of the program."""
    return dict(_walk(get_command(app), ()))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*path, name))
    else:
        yield " ".join(path), command


def render_manual() -> str:
    """A section for each command; one that goes by two names is described once."""
    described: dict[str, str] = {}
    parts = []
    for name, command in list_commands().items():
        table = _render_table(command)
        key = f"{command.help}{table}"
        first = described.setdefault(key, name)
        usage = " ".join([PROGRAM, name, *_usage(command)])
        body = f"{_one_line(command.help)}\n\n```text\n{usage}\n```\n{table}"
        if first != name:
            body = f"The same as [`{PROGRAM} {first}`](#{PROGRAM}-{first.replace(' ', '-')}).\n"
        parts.append(f"## `{PROGRAM} {name}`\n\n{body}")
    return "\n".join(parts)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _usage(command: TyperCommand) -> Iterator[str]:
    """Arguments, then the options that one must give."""
    for param in command.params:
        if isinstance(param, TyperArgument):
            yield _spell(param)
    options = [param for param in command.params if isinstance(param, TyperOption) and not _is_common(param)]
    yield from (_spell(option) for option in options if option.required)
    if not all(option.required for option in options):
        yield "[options]"


def _spell(param: TyperArgument | TyperOption) -> str:
    kind = param.type_descriptor.annotation
    word = param.metavar or PLACEHOLDERS.get(kind, str(param.name).upper())
    if isinstance(param, TyperArgument):
        return word
    return param.opts[0] if param.is_flag else f"{param.opts[0]} {word}"


def _render_table(command: TyperCommand) -> str:
    # What nearly all of them take is said once, above the commands.
    shown = [param for param in command.params if isinstance(param, TyperArgument | TyperOption)]
    rows = [
        f"| `{_spell(param)}` | {_default(param)} | {_words(param)} |\n" for param in shown if not _is_common(param)
    ]
    return "".join(["\n| what | default | what it says |\n|---|---|---|\n", *rows]) if rows else ""


def _is_common(param: Any) -> bool:
    """Whether it is the option that nearly all commands have: the configuration."""
    return param.default is find_config


def _words(param: Any) -> str:
    kind = param.type_descriptor.annotation
    choices = f" One of {', '.join(f'`{one.value}`' for one in kind)}." if _is_enum(kind) else ""
    return f"{_one_line(param.help)}{choices}".replace("|", "\\|")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "–" if param.default is None or param.default in ("", ()) or param.default is False else f"`{param.default}`"


def find_typed(markdown: str) -> Iterator[Typed]:
    """Every command line of ours in a document's code blocks and sentences."""
    for block in _FENCE.findall(markdown):
        for line in block.replace("\\\n", " ").splitlines():
            words = _split(line) if f"{PROGRAM} " in line else ()
            places = [place for place, word in enumerate(words) if word.rpartition("/")[2] == PROGRAM]
            # In `docker compose exec ptq ptq-bot ...` it is the last; as a service's name nothing comes after it.
            if places and words[places[-1] + 1 :]:
                yield Typed(words[places[-1] + 1 :], is_whole=True)
    for inline in _INLINE.findall(re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)):
        yield Typed(_split(inline)[1:], is_whole=False)


def _split(line: str) -> tuple[str, ...]:
    """As a shell has it, without comments and redirections."""
    words = shlex.split(re.sub(r"\$\([^)]*\)", "1", line), comments=True)
    ends = [place for place, word in enumerate(words) if word in {"<", ">", "|", "&&", ";"}]
    return tuple(words[: ends[0]] if ends else words)


def complain(typed: Typed) -> str:
    """What the program would say against it; empty where it would take it."""
    commands = list_commands()
    name = next((name for name in (" ".join(typed.words[:2]), typed.words[0]) if name in commands), None)
    if name is None:
        return "" if _is_general(typed) else "there is no such command"
    command, words = commands[name], typed.words[len(name.split()) :]
    # A command with its argument is there to be copied, in a sentence too; one with nothing or an option is named only.
    is_named = not typed.is_whole and not (words and not words[0].startswith("-"))
    # So that no configuration is looked for.
    given = ("--config", "ptq.toml", *words) if any(map(_is_common, command.params)) else words
    try:
        command.make_context(PROGRAM, [*_with_numbers(command, given)])
    except TyperException as error:
        return "" if is_named and re.match(r"Missing|.* requires an argument", str(error)) else str(error)
    return ""


def _is_general(typed: Typed) -> bool:
    """Whether it is an option of the program itself or, in a sentence, a family of commands."""
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    families = {name for name, inner in program.commands.items() if isinstance(inner, TyperGroup)}
    options = {option for param in program.params for option in param.opts} | {"--help"}
    return len(typed.words) == 1 and typed.words[0] in (options if typed.is_whole else families | options)


def _with_numbers(command: TyperCommand, words: tuple[str, ...]) -> Iterator[str]:
    """With a number in each place where a document has a letter for one."""
    options = [param for param in command.params if isinstance(param, TyperOption)]
    numeric = {name for one in options for name in one.opts if one.type_descriptor.annotation in (int, float)}
    for before, word in zip(("", *words), words, strict=False):
        yield "1" if before in numeric and word.isupper() else word
