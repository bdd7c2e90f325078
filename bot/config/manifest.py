"""The App's manifest, `app.yml`, as values: what the App may do on GitHub, and which events it gets.

This file refuses to know how an App is registered.
"""

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
    """What `app.yml` says. GitHub's names for its keys:
    https://docs.github.com/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    public: bool
    permissions: Mapping[str, Literal["read", "write"]] = Field(alias="default_permissions")
    """Permission -> the most that the App may ask of it."""
    events: tuple[str, ...] = Field(alias="default_events")
    """The webhook events that GitHub sends, besides those that every App gets."""


def load_manifest() -> Manifest:
    """Read the `app.yml` that belongs to this program."""
    return Manifest.model_validate(yaml.safe_load(read_manifest()))


def read_manifest() -> str:
    """Its text, reasons and all."""
    return (_IN_A_WHEEL if _IN_A_WHEEL.is_file() else _IN_A_CHECKOUT).read_text()


def read_reasons() -> Mapping[str, str]:
    """Permission with its level, such as `issues: write`, or event -> why: what stands right above it."""
    found = re.findall(r"^  # (.+)\n  (?:- )?(\w+(?:: \w+)?)$", read_manifest(), re.MULTILINE)
    return {name: reason for reason, name in found}
