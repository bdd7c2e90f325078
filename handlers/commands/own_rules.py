"""A repository's own rules: `.github/ptq.toml` on its default branch. They can only add restrictions.

People who can merge to that branch can allow less than the operator, never more. If the file is not valid, nothing new
starts, and the reply to a request says why.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from handlers.context import Context
from handlers.rules import RepositoryRules, Role
from runner.model.caps import Scope

PATH = ".github/ptq.toml"
MAX_BYTES = 20_000
MAX_SHOWN = 200
"""The most characters of a posted reason."""

Jobs = Annotated[int, Field(ge=0)]


class _RulesTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Quotas(_RulesTable):
    """The most jobs for each scope. None means that the file sets no limit."""

    issue: Jobs | None = None
    user_day: Jobs | None = None
    repository_day: Jobs | None = None
    repository_month: Jobs | None = None


MAX_DOTS = 20
"""The most dots outside quotes in a line. A valid file needs few, because it has only two levels of names."""

_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*+(?:\"|\\?$)|'[^'\n]*+(?:'|$)|#[^\n]*+", re.MULTILINE)
"""A quoted text or a comment. A quote that is not closed extends to the end of its line, so that it is read once."""


class _OwnRules(_RulesTable):
    """The file, described in `docs/commands.md`."""

    labels: dict[str, str] | None = None
    presets: tuple[str, ...] | None = Field(None, strict=False)
    who_may_start: Literal["triage", "write", "maintain", "admin"] = "triage"
    who_may_open: Literal["write", "maintain", "admin"] = "write"
    quotas: _Quotas = _Quotas()


async def narrow(context: Context, rules: RepositoryRules) -> RepositoryRules:
    """The operator's rules for a repository, combined with the repository's own.

    The file is read from GitHub each time, like permissions. GitHub knows which branch is the default one now. A late
    delivery may name another branch, which has no such file.
    """
    content = await context.github.fetch_file(rules.name, PATH, None)
    return rules if content is None else apply_own(rules, content, context.presets)


def apply_own(rules: RepositoryRules, content: bytes, presets: Mapping[str, Any]) -> RepositoryRules:
    """The operator's rules, combined with those of the untrusted file. `fault` says why the file is not valid. Pure."""
    try:
        own = _OwnRules.model_validate(_read(content))
        _check(own, rules, presets)
    except ValidationError as error:
        return replace(rules, fault=_shorten(_describe(error, content.decode(errors="replace"))))
    except ValueError as error:
        return replace(rules, fault=_shorten(str(error)))
    quotas = {Scope(scope): limit for scope, limit in own.quotas.model_dump(exclude_none=True).items()}
    return replace(
        rules,
        labels=rules.labels if own.labels is None else own.labels,
        presets=own.presets,
        who_may_start=max(rules.who_may_start, Role[own.who_may_start.upper()]),
        who_may_open=max(rules.who_may_open, Role[own.who_may_open.upper()]),
        quotas=quotas,
    )


def _read(content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    try:
        text = content.decode()
        # For a name of thousands of parts the parser needs seconds, and nothing else runs meanwhile.
        if any(line.count(".") > MAX_DOTS for line in _QUOTED.sub("", text).split("\n")):
            raise ValueError(f"a line has more than {MAX_DOTS} dots outside quotes")
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise ValueError("not valid UTF-8") from None
    except RecursionError:
        raise ValueError("tables are nested too deeply") from None


def _check(own: _OwnRules, rules: RepositoryRules, presets: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a label or preset that the operator has not configured, or that the file excludes."""
    known = {label.casefold() for label in rules.labels}
    for label, preset in (own.labels or {}).items():
        if label.casefold() not in known:
            raise ValueError(f"labels: the operator has not configured the label {label!r}")
        if preset not in (presets if own.presets is None else own.presets):
            raise ValueError(f"labels: the preset {preset!r} is not allowed here")
    for preset in own.presets or ():
        if preset not in presets:
            raise ValueError(f"presets: unknown preset {preset!r}; available: {', '.join(presets)}")


def _describe(error: ValidationError, text: str) -> str:
    """The first problem, with the line of its key if that is known."""
    problem = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in problem["loc"]]
    key = next((part for part in reversed(path) if not part.isdigit()), "")
    lines = text.splitlines()
    begins = re.compile(r"[\s\[\"']*" + re.escape(key) + r"\b")
    found = [at for at, line in enumerate(lines, 1) if key and begins.match(line)]
    where = f"line {found[0]}, " if len(found) == 1 else ""
    return f"{where}{'.'.join(path)}: {problem['msg']}"


def _shorten(reason: str) -> str:
    return reason[:MAX_SHOWN]
