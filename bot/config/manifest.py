"""The App's manifest, `app.yml`, as values: its permissions and events on GitHub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

_IN_A_WHEEL = Path(__file__).parents[1] / "app.yml"
_IN_A_CHECKOUT = Path(__file__).parents[2] / "app.yml"


class Manifest(BaseModel):
    """The values of `app.yml`. GitHub's names for its keys:
    https://docs.github.com/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    public: bool
    permissions: Mapping[str, Literal["read", "write"]] = Field(alias="default_permissions")
    """Permission -> level."""
    events: tuple[str, ...] = Field(alias="default_events")
    """The events that GitHub sends, in addition to those that every App gets."""


def load_manifest() -> Manifest:
    """Read this program's `app.yml`."""
    return Manifest.model_validate(yaml.safe_load(read_manifest()))


def read_manifest() -> str:
    """The text of `app.yml`, with its comments."""
    return (_IN_A_WHEEL if _IN_A_WHEEL.is_file() else _IN_A_CHECKOUT).read_text()


def read_reasons() -> Mapping[str, str]:
    """Permission with its level, such as `issues: write`, or event -> reason: the comment above it."""
    found = re.findall(r"^  # (.+)\n  (?:- )?(\w+(?:: \w+)?)$", read_manifest(), re.MULTILINE)
    return {name: reason for reason, name in found}
