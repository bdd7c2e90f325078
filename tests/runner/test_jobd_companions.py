"""Companions: the files of other repositories, beside a job's worktree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobd import Change, Jobd, Repository, make_repository

pytestmark = pytest.mark.slow

SHOW = 'cd "$PTQ_COMPANIONS_DIR/octo/parts"; ls -A; cat lib/a.py; test -x run.sh; '
TOUCH = "touch lib/a.py 2> /dev/null || echo read-only"


@pytest.fixture
def parts(tmp_path: Path) -> Repository:
    parts = make_repository(tmp_path / "parts", {"lib/a.py": "old\n", "run.sh": "echo\n"})
    (parts.folder / "run.sh").chmod(0o755)
    (parts.folder / "link").symlink_to("/etc/passwd")
    parts.commit()
    return parts


def describe(repository: Repository, **changes: str) -> dict[str, str]:
    return {"name": "octo/parts", "url": repository.url, "branch": "HEAD", **changes}


def test_an_agent_reads_the_newest_files_of_a_companion_and_cannot_change_them(jobd: Jobd, parts: Repository) -> None:
    jobd.prepare(companions=[describe(parts)])
    commit, job = parts.commit({"lib/a.py": "new\n"}), jobd.beside()
    prepared = job.prepare(companions=[describe(parts)])
    assert prepared["result"]["companions"] == {"octo/parts": commit}
    lines = job.agent(SHOW + TOUCH)["log"].decode().splitlines()
    assert lines == ["lib", "link", "run.sh", "new", "read-only"]
    assert job.collect()["state"] == "done"
    assert Change(job.result()).modes == {}
    job.call("clean")
    assert not job.folder.exists()
    earlier = jobd.job.companions / "octo" / "parts" / "lib" / "a.py"
    assert earlier.read_text() == "old\n", "another job's newer files are its own"

    # When a companion cannot be fetched, it is named, and no earlier files take its place.
    for wrong in ({"url": "file:///nowhere"}, {"branch": "no-such"}):
        failed = jobd.beside().prepare(companions=[describe(parts, **wrong)])
        assert (failed["state"], failed["error"]) == ("failed", "companion_failed")
        assert failed["message"].startswith("the companion octo/parts could not be fetched")


def test_what_happens_to_the_files_where_nothing_is_sealed_reaches_no_later_job(
    unsealed: Jobd, parts: Repository
) -> None:
    unsealed.prepare(companions=[describe(parts)])
    assert unsealed.agent(f"{SHOW}echo bad > lib/a.py")["result"]["exit_status"] == 0
    later = unsealed.beside()
    later.prepare(companions=[describe(parts)])
    assert (later.job.companions / "octo" / "parts" / "lib" / "a.py").read_text() == "old\n"


def test_a_job_without_companions_has_no_place_for_them(jobd: Jobd) -> None:
    assert jobd.prepare()["state"] == "done"
    assert "PTQ_COMPANIONS_DIR" not in jobd.job.environment()
