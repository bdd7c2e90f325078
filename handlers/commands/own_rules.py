"""A repository's own word on what may be asked for there: `.github/ptq.toml` on its default branch, only ever narrower.

Whoever can merge to that branch may say less than the operator allows, and nothing more. A file that cannot be
understood stops everything new, and the reply to whoever asks says why.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from handlers.context import Context
from handlers.events import Repository
from handlers.rules import RepositoryRules, Role
from runner.model.caps import Scope

PATH = ".github/ptq.toml"
MAX_BYTES = 20_000
MAX_SHOWN = 200
"""Characters of a reason that is posted."""

Jobs = Annotated[int, Field(ge=0)]


class _RulesTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Quotas(_RulesTable):
    """Jobs, at most."""

    issue: Jobs | None = None
    user_day: Jobs | None = None
    repository_day: Jobs | None = None
    repository_month: Jobs | None = None


class _OwnRules(_RulesTable):
    """The file; `docs/commands.md` describes it."""

    labels: dict[str, str] | None = None
    presets: tuple[str, ...] | None = Field(None, strict=False)
    who_may_start: Literal["triage", "write", "maintain", "admin"] = "triage"
    who_may_open: Literal["write", "maintain", "admin"] = "write"
    quotas: _Quotas = _Quotas()


async def narrow(context: Context, rules: RepositoryRules, repository: Repository) -> RepositoryRules:
    """What may be asked for in a repository, by the operator's rules and its own. Asked live, as permissions are."""
    content = await context.github.fetch_file(rules.name, PATH, repository.default_branch)
    return rules if content is None else apply_own(rules, content, context.presets)


def apply_own(rules: RepositoryRules, content: bytes, presets: Mapping[str, Any]) -> RepositoryRules:
    """The rules with those of the file, which may be anything; where it is broken, their `fault` says why. Pure."""
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
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    except RecursionError:
        raise ValueError("its tables are nested too deeply") from None


def _check(own: _OwnRules, rules: RepositoryRules, presets: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what would be more than the operator allows, or is nothing."""
    known = {label.casefold() for label in rules.labels}
    for label, preset in (own.labels or {}).items():
        if label.casefold() not in known:
            raise ValueError(f"labels: the operator of this App has set up no label {label!r}")
        if preset not in (presets if own.presets is None else own.presets):
            raise ValueError(f"labels: {preset!r} is no preset that may be asked for here")
    for preset in own.presets or ():
        if preset not in presets:
            raise ValueError(f"presets: {preset!r} is none; there are: {', '.join(presets)}")


def _describe(error: ValidationError, text: str) -> str:
    """The first problem, with the line that holds its key where that can be told."""
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
