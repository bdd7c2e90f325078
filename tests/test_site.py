"""The site of the documents, built as `make docs` does: what leads nowhere fails it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PARTS = ("docs", "packaging", "mkdocs.yml", "app.yml", "ptq.example.toml")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of all that the site is made from.

    Skips the test where MkDocs is not installed, as `make docs` does, or fails it where `PTQ_TEST_REQUIRE_MKDOCS`
    says so.
    """
    if not Path(sys.executable).with_name("mkdocs").exists():
        (pytest.fail if os.environ.get("PTQ_TEST_REQUIRE_MKDOCS") == "1" else pytest.skip)("MkDocs is missing")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that is in the Makefile."""
    found = re.search(r"\n\t(NO_MKDOCS_2_WARNING=1) \$\(BIN\)/(mkdocs build .*)\n", (ROOT / "Makefile").read_text())
    assert found
    command = f"{found[1]} {Path(sys.executable).parent}/{found[2]}"
    return subprocess.run(command, shell=True, cwd=tree, capture_output=True, text=True, timeout=120)


def test_the_site_is_built_with_the_files_that_documents_link_to(tree: Path) -> None:
    built = build(tree)
    assert built.returncode == 0, built.stderr
    assert (tree / "site" / "app.yml").read_text() == (ROOT / "app.yml").read_text()
    assert 'href="app.yml"' in (tree / "site" / "setup.html").read_text()


def test_links_that_lead_nowhere_fail_the_build_and_each_is_named(tree: Path) -> None:
    links = ["nowhere.md", "setup.md#no-such-heading", "../nowhere.yml", "/setup.md", "#gone"]
    page = tree / "docs" / "concepts.md"
    page.write_text("\n\n".join([page.read_text(), *(f"[x]({link})" for link in links)]))
    built = build(tree)
    assert built.returncode != 0
    warnings = [line for line in built.stderr.splitlines() if "concepts.md" in line]
    assert [link for link in links if not any(f"'{link}'" in warning for warning in warnings)] == [], built.stderr
