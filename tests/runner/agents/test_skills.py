"""Which skills a job gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.agents.skills import (
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    Skill,
    SkillPlaces,
    choose_skills,
    leave_out_repository,
    place_skills,
    read_skill,
)

OURS = Skill("ours", frozenset({"Bug"}), files={"SKILL.md": b"x", "a/b": b"y"})
THEIRS = Skill("theirs", frozenset({"docs"}), in_repository=".agents/theirs")
KNOWN = {skill.name: skill for skill in (OURS, THEIRS)}


def test_a_job_gets_each_skill_of_its_repository_and_of_its_labels_once() -> None:
    assert choose_skills(KNOWN.values(), ("theirs", ".claude/skills"), ["bug", "DOCS"]) == (
        *("theirs", ".claude/skills"),
        "ours",
    )
    assert choose_skills(KNOWN.values(), (), ["other"]) == ()


def test_a_job_at_a_strangers_commit_gets_only_what_is_not_in_the_repository() -> None:
    assert leave_out_repository(("ours", "theirs", ".claude/skills", "skills/"), KNOWN.values()) == ("ours",)


def test_skills_are_put_where_the_agent_looks_for_them() -> None:
    wanted = ("ours", "theirs", "gone", ".claude/skills/")
    assert place_skills(wanted, KNOWN, ".x") == SkillPlaces(
        {".x/ours/SKILL.md": b"x", ".x/ours/a/b": b"y"}, {".x/theirs": ".agents/theirs"}, {".claude/skills": ".x"}
    )
    assert place_skills(wanted, KNOWN, "") == SkillPlaces({}, {}, {})


def test_a_folder_with_too_much_in_it_is_no_skill(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_bytes(b"x" * MAX_SKILL_BYTES)
    assert len(read_skill(tmp_path)["SKILL.md"]) == MAX_SKILL_BYTES
    (tmp_path / "more").write_text("x")
    with pytest.raises(OSError, match="is larger than"):
        read_skill(tmp_path)
    for number in range(MAX_SKILL_FILES):
        (tmp_path / str(number)).touch()
    with pytest.raises(OSError, match="has more than"):
        read_skill(tmp_path)
