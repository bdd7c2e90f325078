"""Jinja compiles each template once for each environment, which takes longer than to render it. Most tests have
environments of their own, so here all of them share what was compiled.

The product needs no such cache: a service has one environment for its pages.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, Template
from jinja2.bccache import Bucket

_load = FileSystemLoader.load


class _Compiled(BytecodeCache):
    """Keeps the code by the template's name and the hash of its text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code
        self._codes[bucket.key, bucket.checksum] = bucket.code


_compiled = _Compiled()


def share_compiled_templates() -> None:
    """Let all environments share what they compile from now on."""
    FileSystemLoader.load = _load_and_share  # type: ignore[assignment,method-assign]


def _load_and_share(self: FileSystemLoader, environment: Environment, *rest: Any) -> Template:
    environment.bytecode_cache = _compiled
    return _load(self, environment, *rest)
