from __future__ import annotations

import base64
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.artifacts import BadArtifacts, find_protecting, find_refusals, looks_like_git, read_report, stays_inside
from runner.environment import PROTECTED_PATHS, Limits, Profile
from runner.job import FileChange, Report, digest_of
from tests.support.jobs import make_job

PROFILE = Profile("octo/widgets", limits=Limits(max_changes=5, max_change_bytes=1000, max_text_bytes=100))
JOB = make_job(base_commit="ab" * 20)


def change(path: str = "a.py", content: bytes | None = b"x\n", **fields: Any) -> dict[str, Any]:
    encoded = None if content is None else base64.b64encode(content).decode()
    return {"path": path, "mode": "100644", "old_mode": "100644", "content": encoded, **fields}


def raw(*changes: Any, **fields: Any) -> dict[str, Any]:
    texts = {"report": "fixed", "worklog": "", "pr_title": "", "repro": "", "patch": "+x", "problems": []}
    return {**texts, "changes": list(changes), **fields}


def read(*changes: Any, **fields: Any) -> Report:
    return read_report(JOB, raw(*changes, **fields), PROFILE)


def refusal(*changes: Any) -> str:
    report = read(*changes)
    assert report.digest is None
    assert report.refusals
    return " ".join(report.refusals)


def test_a_clean_change_gets_a_digest_over_base_paths_modes_and_contents() -> None:
    report = read(change("a.py"), change("new.py", old_mode=None), change("gone.py", None, mode=None))
    assert report.refusals == ()
    assert report.digest == digest_of(JOB.base_commit or "", report.changes)
    assert [item.status for item in report.changes] == ["modified", "added", "deleted"]


def test_no_change_has_no_digest() -> None:
    assert read().digest is None
    assert read().refusals == ()


def test_a_preset_that_changes_nothing_gets_its_diff_refused() -> None:
    report = read_report(make_job(base_commit="ab" * 20, may_change=False, preset="diagnose"), raw(change()), PROFILE)
    assert report.digest is None
    assert "the preset diagnose changes no file, but the agent changed `a.py`" in report.refusals[0]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".github/workflows/ci.yml", "is protected by `.github/**`"),
        (".GitHub/CODEOWNERS", "is protected"),
        (".ci/run", "is protected by `.ci/**`"),
        (".CI", "is protected by `.ci/**`"),
        (".gitmodules", "is protected"),
        ("docs/.gitmodules", "is protected"),
        ("codeowners", "is protected by `CODEOWNERS`"),
        ("docs/CODEOWNERS", "is protected"),
        (".git\u200chub/x", "nobody can see"),
        ("\uff0egithub/x", "is protected"),
        (".git/config", "git's own folder"),
        ("a/.GIT/config", "git's own folder"),
        (".g\u200cit/config", "git's own folder"),
        ("git~1/config", "git's own folder"),
        (".git /config", "git's own folder"),
        (".git./config", "git's own folder"),
        (".git::$INDEX_ALLOCATION/config", "git's own folder"),
        (".\uff47it/config", "git's own folder"),
        ("/etc/passwd", "no path inside"),
        ("../up", "no path inside"),
        ("a//b", "no path inside"),
        ("a/./b", "no path inside"),
        ("a\\b", "no path inside"),
        ("a\nb", "nobody can see"),
        ("a\x00b", "nobody can see"),
        ("a\u202eb", "nobody can see"),
    ],
)
def test_a_path_that_may_not_change_is_refused_by_name(path: str, words: str) -> None:
    assert words in refusal(change(path))


@pytest.mark.parametrize(
    "path", ["a.py", ".gitignore", "docs/github/x.md", "src/.gitkeep", "git/x.py", "ci/run", "é/ü.py"]
)
def test_an_ordinary_path_is_not_refused(path: str) -> None:
    assert read(change(path)).refusals == ()


def test_a_submodule_that_changes_is_refused() -> None:
    assert "submodule" in refusal(change("lib", None, mode="160000", old_mode="160000"))
    assert "submodule" in refusal(change("lib", None, mode=None, old_mode="160000"))


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("link", b"a.py", True),
        ("a/b/link", b"../c", True),
        ("a/b/link", b"../../c/d", True),
        ("a/link", b"../..", False),
        ("link", b"..", False),
        ("link", b"/etc/passwd", False),
        ("a/b/link", b"x/../../../c", False),
        ("a/link", b"b/..", False),
        ("link", b"", False),
        ("link", b".git/config", False),
        ("a/link", b"../.GIT/hooks", False),
        ("link", b"a\\b", False),
    ],
)
def test_a_link_may_climb_and_then_go_down_and_nothing_else(path: str, target: bytes, inside: bool) -> None:
    assert stays_inside(FileChange(path, "120000", target)) is inside
    report = read(change(path, target, mode="120000", old_mode=None))
    assert any("out of the tree" in refused for refused in report.refusals) is not inside


def test_paths_that_some_systems_take_for_one_are_refused() -> None:
    assert "are the same file on some systems" in refusal(change("Readme"), change("README"))
    assert read(change("Readme", None, mode=None), change("README", old_mode=None)).refusals == (), "a rename of case"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        raw(report=5),
        raw(report="x" * 101),
        raw(patch=None),
        raw(problems="none"),
        raw(changes={}),
        raw("a.py"),
        raw(change(path="")),
        raw(change(path=5)),
        raw(change(path="\ud800")),
        raw(change(mode="100600")),
        raw(change(mode="040000")),
        raw(change(mode=None, old_mode=None)),
        raw(change(content=None)),
        raw(change(content=b"x", mode=None)),
        raw({**change(), "content": "%%%"}),
        raw({**change(), "content": 5}),
        raw(change(content=b"x" * 1001)),
        raw(*(change(f"{number}") for number in range(6))),
        raw(change(), change()),
    ],
)
def test_an_answer_of_another_shape_is_not_read_at_all(answer: dict[str, Any]) -> None:
    with pytest.raises(BadArtifacts):
        read_report(JOB, answer, PROFILE)


def test_what_a_reader_would_miss_is_named() -> None:
    report = read(
        change("bin.dat", b"\x00\xff", old_mode=None),
        change("run.sh", b"x", mode="100755"),
        change("long.py", b"y" * 900),
        change("hidden.py", "a\u202eb\u200b".encode()),
        change("link", b"a.py", mode="120000", old_mode=None),
        problems=["the log was cut\nhere", 5],
    )
    said = "\n".join(report.warnings)
    for words in (
        "`bin.dat` is binary (2 bytes)",
        "`run.sh` is executable now",
        "U+202E",
        "U+200B",
        "is a link to `a.py`",
    ):
        assert words in said
    assert "the log was cut here" in said
    assert "long.py" not in said


def test_text_that_a_database_could_not_hold_is_made_harmless() -> None:
    report = read(report="a\x00b", worklog="\ud800")
    assert report.body == "a\ufffdb"
    report.worklog.encode()


def test_patterns_of_an_operator_count_in_folders_and_at_any_depth() -> None:
    assert find_protecting("deploy/key.pem", ["*.pem"]) == "*.pem"
    assert find_protecting("deploy/x", ["deploy/**"]) == "deploy/**"
    assert find_protecting("src/deploy/x", ["deploy/**"]) is None
    assert find_protecting("a.py", PROTECTED_PATHS) is None


@given(st.text(max_size=12))
def test_nothing_that_folds_to_git_gets_through(text: str) -> None:
    if text.casefold() == ".git":
        assert looks_like_git(text)
    if looks_like_git(text):
        assert list(find_refusals(JOB, [FileChange(f"a/{text}/b", "100644", b"")], ()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(raw(), JSON)))
def test_any_answer_is_either_read_or_refused(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BadArtifacts):
        read_report(JOB, answer, PROFILE)
