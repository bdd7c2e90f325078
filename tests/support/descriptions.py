"""What the tests read from npm: GitHub's own descriptions of itself, and axe-core; and how they get here.

`python -m tests.support.descriptions` (called by the Makefile) fetches them with npm, once.
This file refuses to know what is in them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.npm import NpmFailed, install_packages

_ROOT = Path(__file__).parents[2]
_WANTED = _ROOT / "tests" / "descriptions"
_PLACE = _ROOT / ".cache" / "npm"
_LOCK = "package-lock.json"

_OPENAPI = Path("@octokit/openapi/generated/api.github.com.json")
_WEBHOOK_EXAMPLES = Path("@octokit/webhooks-examples/api.github.com/index.json")
_GRAPHQL = Path("@octokit/graphql-schema/schema.graphql")
_AXE = Path("axe-core/axe.min.js")


class DescriptionsMissing(Exception):  # noqa: N818
    """A file is not on this machine, and could not be brought here."""


def find_openapi() -> Path:
    """The OpenAPI description of api.github.com."""
    return _find(_OPENAPI)


def find_webhook_examples() -> Path:
    """Example payloads of webhooks: a list with `name` and `examples` for each event."""
    return _find(_WEBHOOK_EXAMPLES)


def find_graphql_schema() -> Path:
    """The public schema of GitHub's GraphQL API."""
    return _find(_GRAPHQL)


def find_axe() -> Path:
    """The script of axe-core, which finds what some people cannot use on a page."""
    return _find(_AXE)


def install(wanted: Path = _WANTED, place: Path = _PLACE, npm_options: Sequence[str] = ()) -> bool:
    """Bring what `wanted` pins to `place`, and say whether anything had to be done.

    Only the files that we read are kept: the packages unpack to 400 MB.
    """
    lock = (wanted / _LOCK).read_bytes()
    arrived = place / _LOCK
    if arrived.is_file() and arrived.read_bytes() == lock:
        return False
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        workshop = Path(folder)
        for name in ("package.json", _LOCK):
            shutil.copy(wanted / name, workshop)
        try:
            install_packages(workshop, npm_options)
        except NpmFailed as error:
            raise DescriptionsMissing(f"npm could not fetch what the tests read: {error}") from error
        for file in (_OPENAPI, _WEBHOOK_EXAMPLES, _GRAPHQL, _AXE):
            target = place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (workshop / "node_modules" / file).replace(target)
    arrived.write_bytes(lock)
    return True


def _find(file: Path) -> Path:
    found = _PLACE / file
    if not found.is_file():
        raise DescriptionsMissing(f"{found} is missing: run `python -m tests.support.descriptions`, or `make test`")
    return found


def main() -> int:
    """Fetch what is missing; the exit status."""
    try:
        if install():
            print("fetched GitHub's descriptions of its API and webhooks, and axe-core")
    except DescriptionsMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
