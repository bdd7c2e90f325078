from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.text.sanitize import make_plain_line
from runner.changes.artifacts import (
    BadArtifacts,
    find_max_answer,
    find_protecting,
    find_refusals,
    fold_path,
    looks_like_git,
    read_report,
    stays_inside,
)
from runner.characters import show_path
from runner.model.environment import PROTECTED_PATHS, Limits, Profile
from runner.model.job import FileChange, Report, digest_of
from tests.support.jobs import make_job
from tests.support.patches import render_patch

PROFILE = Profile("octo/widgets", limits=Limits(max_changes=6, max_change_bytes=6000, max_text_bytes=100))
JOB = make_job(base_commit="ab" * 20)
SECRET = b"secret"


def change(path: str = "a.py", content: bytes | None = b"x\n", **fields: Any) -> dict[str, Any]:
    encoded = None if content is None else base64.b64encode(content).decode()
    return {"path": path, "mode": "100644", "old_mode": "100644", "content": encoded, **fields}


def raw(*changes: Any, **fields: Any) -> dict[str, Any]:
    texts = {"report": "fixed", "worklog": "", "pr_title": "", "repro": "", "patch": "", "problems": []}
    return {**texts, "changes": list(changes), **fields}


def with_patch(*changes: dict[str, Any]) -> dict[str, Any]:
    decoded = [
        FileChange(
            row["path"],
            row["mode"],
            None if row["content"] is None else base64.b64decode(row["content"]),
            row["old_mode"],
        )
        for row in changes
    ]
    return raw(*changes, patch=render_patch(decoded))


def read(*changes: Any, **fields: Any) -> Report:
    return read_report(JOB, {**with_patch(*changes), **fields}, PROFILE, SECRET)


def refusal(*changes: Any) -> str:
    report = read(*changes)
    assert report.digest is None
    assert report.refusals
    return " ".join(report.refusals)


def test_a_clean_change_gets_a_digest_over_base_paths_modes_and_contents() -> None:
    report = read(change("a.py"), change("new.py", old_mode=None), change("gone.py", None, mode=None))
    assert report.refusals == ()
    assert report.digest == digest_of(JOB.base_commit or "", report.changes, SECRET)
    assert [item.status for item in report.changes] == ["modified", "added", "deleted"]


def test_no_change_has_no_digest() -> None:
    assert read().digest is None
    assert read().refusals == ()


def test_a_preset_that_changes_nothing_gets_its_diff_refused() -> None:
    report = read_report(
        make_job(base_commit="ab" * 20, may_change=False, preset="diagnose"), raw(change()), PROFILE, SECRET
    )
    assert report.digest is None
    assert "the preset diagnose must not change files, but the agent changed `a.py`" in report.refusals[0]


@pytest.mark.parametrize(
    "path",
    ["a.py", ".gitignore", "docs/github/x.md", "src/.gitkeep", "git/x.py", "git~/x", "ci/run", "é/ü.py", "a:b", "c..d"],
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
        ("link", b"C:/x", False),
        ("link", b"a\0b", False),
        ("link", b"a" * 5000, False),
        ("a/link", b"./../b", False),
        ("a/link", b"./b", True),
    ],
)
def test_a_link_may_climb_and_then_go_down_and_nothing_else(path: str, target: bytes, inside: bool) -> None:
    assert stays_inside(FileChange(path, "120000", target)) is inside
    report = read(change(path, target, mode="120000", old_mode=None))
    assert any("out of the tree" in refused for refused in report.refusals) is not inside


@pytest.mark.parametrize(
    ("one", "other"), [("Readme", "README"), ("a/b.py", "A/B.py"), ("\u00e9", "e\u0301"), ("x", "x."), ("a", "a\u200b")]
)
def test_paths_that_some_systems_take_for_one_are_refused(one: str, other: str) -> None:
    assert "are the same file on some systems" in refusal(change(one), change(other, old_mode=None))
    assert "are the same file on some systems" in refusal(change(one, old_mode=None), change(other))


def test_a_rename_of_case_and_twins_that_were_always_there_are_no_collision() -> None:
    assert read(change("README", None, mode=None), change("Readme", old_mode=None)).refusals == ()
    assert read(change("Readme", None, mode=None), change("README", old_mode=None)).refusals == ()
    assert read(change("xt_dscp.c"), change("xt_DSCP.c")).refusals == ()


def test_nothing_lies_in_a_file_or_in_a_link() -> None:
    link = change("Lib", b"src", mode="120000", old_mode=None)
    assert "`lib/x.py` is inside `Lib`, which is not a folder" in refusal(link, change("lib/x.py", old_mode=None))
    assert read(change("lib", None, mode=None), change("lib/x.py", old_mode=None)).refusals == (), (
        "a file became a folder"
    )


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
        raw({**change(), "path": 5}),
        raw(change(path="\ud800")),
        raw(change(path="a\0b")),
        raw(change(path="a" * 5000)),
        raw(change(mode="100600")),
        raw(change(mode="040000")),
        raw(change(mode=None, old_mode=None)),
        raw(change(content=None)),
        raw(change(content=b"x", mode=None)),
        raw({**change(), "content": "%%%"}),
        raw({**change(), "content": 5}),
        raw(change(content=b"x" * 6001)),
        raw(*(change(f"{number}") for number in range(7))),
        raw(change(), change()),
    ],
)
def test_an_answer_of_another_shape_is_not_read_at_all(answer: dict[str, Any]) -> None:
    with pytest.raises(BadArtifacts):
        read_report(JOB, answer, PROFILE, SECRET)


def test_what_a_reader_would_miss_is_named() -> None:
    report = read(
        change("bin.dat", b"\x00\xff", old_mode=None),
        change("run.sh", b"x", mode="100755"),
        change("fine.py", b"y" * 900),
        change("long.py", b"y" * 1100),
        change("hidden.py", "a\u202eb\u200b".encode()),
        change("link", b"a.py", mode="120000", old_mode=None),
        problems=["the log was cut\nhere", 5],
    )
    said = "\n".join(report.warnings)
    for words in (
        "`bin.dat` is shown as binary (2 bytes), so nobody sees its content",
        "`run.sh` is executable now",
        "U+202E",
        "U+200B",
        "is a link to `a.py`",
        "`long.py` has a line of 1100 characters",
    ):
        assert words in said
    assert "the log was cut here" in said
    assert "fine.py" not in said


def test_paths_that_are_too_long_together_are_refused() -> None:
    rows = [change(f"{number:03}" + '"' * 4000, old_mode=None) for number in range(130)]
    roomy = Profile("octo/widgets", limits=Limits())
    with pytest.raises(BadArtifacts, match="longer than 500000 characters together"):
        read_report(JOB, raw(*rows), roomy, SECRET)


def test_invisible_characters_in_a_name_are_shown_and_named() -> None:
    report = read(change("na\u200cme.py"))
    assert report.refusals == ()
    assert report.warnings == ("`na⟨U+200C⟩me.py` has in its name invisible characters: U+200C",)


def test_a_name_cannot_break_out_of_its_sentence() -> None:
    (warning,) = read(change("a` **b**", b"\xff")).warnings
    assert warning == "`a\u02bc **b**` is not UTF-8 text (1 bytes)"
    assert len(read(change("é" * 4000, b"\xff")).warnings[0]) < 400


def test_many_warnings_of_one_kind_leave_room_for_the_others() -> None:
    decoys = [change(f"d{number:02}.sh", mode="100755") for number in range(60)]
    decoys += [change(f"e{number:02}.txt", b"a" * (1_001 + number)) for number in range(60)]
    rows = [*decoys, change("z.py", b"a = 1" + b" " * 200 + b";import os\n")]
    warnings = read_report(JOB, with_patch(*rows), Profile("octo/widgets", limits=Limits()), SECRET).warnings
    assert warnings[:3] == (
        "`d00.sh` is executable now",
        "`e00.txt` has a line of 1001 characters",
        "`z.py` has something behind 80 columns of blanks or more in one line",
    )
    assert warnings[-1] == "... and 71 more like these"


def test_a_diff_that_nobody_could_read_whole_is_refused_and_the_report_stays() -> None:
    report = read(change(), patch="-" * 24_101)
    assert report.refusals == ("the diff is longer than 24100 bytes, too long to be shown whole",)
    assert report.digest is None
    assert (report.body, len(report.patch)) == ("fixed", 24_100)
    assert read(patch="-" * 24_100).refusals != report.refusals
    wide = read(change(), patch="\u4e2d" * 8_100)
    assert (wide.refusals, len(wide.patch)) == (report.refusals, 24_100 // 3)


@pytest.mark.slow
def test_a_diff_of_more_lines_than_anybody_reads_is_refused_and_the_report_stays() -> None:
    profile = Profile("octo/widgets", limits=Limits(max_change_bytes=200_000))
    head = with_patch(change("long.txt", b"\n", old_mode=None))["patch"].count("\n") - 1
    most, more = (with_patch(change("long.txt", b"\n" * (200_000 - head + over), old_mode=None)) for over in (0, 1))
    shown, refused = (read_report(JOB, answer, profile, SECRET) for answer in (most, more))
    assert (shown.refusals, shown.patch == most["patch"], shown.digest is None) == ((), True, False)
    assert refused.refusals == ("the diff has more than 200000 lines, too many to be read",)
    assert (refused.body, refused.patch == more["patch"][:-2], refused.digest) == ("fixed", True, None)


def test_an_answer_may_be_as_long_as_an_honest_result_of_this_repository() -> None:
    limits = Limits(max_changes=3, max_change_bytes=6_000, max_text_bytes=100)
    changes = [change(f"{number}" + "\x01" * 4_095, b"x" * 2_000) for number in range(3)]
    texts = dict.fromkeys(("report", "worklog", "pr_title", "repro"), "\x01" * 100)
    answer = raw(*changes, **{**texts, "patch": "é" * (24_100 // 2)})
    assert len(json.dumps(answer)) < find_max_answer(limits) < 2_000_000
    assert find_max_answer(Limits()) < 45_000_000, "no other thread runs while JSON is parsed"


def test_a_diff_that_is_not_the_change_is_refused() -> None:
    report = read(change("evil.py"), patch=render_patch([FileChange("ok.py", "100644", b"x\n", "100644")]))
    assert report.digest is None
    assert report.refusals == ("the diff is not the change: the diff shows `a/ok.py b/ok.py`, which is not changed",)


def test_what_a_machine_says_is_code_from_its_first_word_to_its_last() -> None:
    report = read(problems=["`a` **Seen by ptq-bot**: see www.evil.example `b/` was left out"])
    told = "\u02bca\u02bc **Seen by ptq-bot**: see www.evil.example \u02bcb/\u02bc was left out"
    assert [make_plain_line(warning, (), 500) for warning in report.warnings] == [f"the machine says: `{told}`"]


def test_of_many_sentences_only_the_first_are_kept() -> None:
    report = read(problems=[f"problem {number}" for number in range(80)])
    assert len(report.warnings) == 51
    assert report.warnings[-1] == "... and 30 more like these"


def test_without_a_base_there_is_nothing_to_approve() -> None:
    assert read_report(make_job(base_commit=None), raw(change()), PROFILE, SECRET).digest is None


def test_text_that_a_database_could_not_hold_is_made_harmless() -> None:
    report = read(report="a\x00b", worklog="\ud800")
    assert report.body == "a\ufffdb"
    report.worklog.encode()


@pytest.mark.parametrize(
    ("pattern", "protected", "free"),
    [
        ("*.pem", ["key.pem", "deploy/key.PEM", "deploy.pem/x"], ["pem", "key.pem.txt"]),
        ("deploy/**", ["deploy/x", "deploy/a/b", "deploy"], ["src/deploy/x", "deployer/x"]),
        ("vendor/", ["vendor/x", "src/vendor/x"], ["vendored/x"]),
        ("/Makefile", ["Makefile", "makefile"], ["src/Makefile"]),
        ("docs/*.md", ["docs/a.md"], ["docs/a/b.md", "a/docs/b.md"]),
        ("**/lock/*.txt", ["lock/a.txt", "a/b/lock/a.txt"], ["lock/a/b.txt"]),
        ("a/**/z", ["a/z", "a/b/c/z", "a/b/z/y"], ["a/b", "z"]),
        ("[Cc]onf?", ["conf1", "Conf2/x"], ["conf", "konf1"]),
    ],
)
def test_patterns_are_read_as_in_a_gitignore(pattern: str, protected: list[str], free: list[str]) -> None:
    assert [path for path in protected if find_protecting(fold_path(path), [pattern]) != pattern] == []
    assert [path for path in free if find_protecting(fold_path(path), [pattern])] == []


def test_the_paths_that_are_protected_by_default_leave_the_code_alone() -> None:
    assert find_protecting(fold_path("src/a.py"), PROTECTED_PATHS) is None


@pytest.mark.parametrize(
    "path",
    [
        *(".gitlab-ci.yml", ".circleci/config.yml", "azure-pipelines.yml", "ci/azure-pipelines-nightly.yaml"),
        *(
            ".azure-pipelines/a.yml",
            "Jenkinsfile",
            "build/Jenkinsfile.gpu",
            ".travis.yml",
            "appveyor.yml",
            ".appveyor.yml",
        ),
        *(
            ".buildkite/pipeline.yml",
            ".drone.yml",
            ".woodpecker.yml",
            ".woodpecker/test.yml",
            ".cirrus.yml",
            ".cirrus.star",
        ),
        *("bitbucket-pipelines.yml", ".teamcity/settings.kts", "codefresh.yml", ".semaphore/semaphore.yml"),
        *("cloudbuild.yaml", "buildspec.yml", ".gitea/workflows/a.yml", ".forgejo/workflows/a.yml", ".GitLab-CI.yml"),
        *("zuul.d/a.yaml", ".tekton/run.yaml", ".mergify.yml"),
        *(".pre-commit-config.yaml", ".github/workflows/a.yml", ".ci/run"),
    ],
)
def test_the_files_of_ci_services_are_protected_by_default(path: str) -> None:
    assert "is protected by" in refusal(change(path))


@pytest.mark.parametrize("content", [b"x = 1  # \revil()\n", b"caf\xe9 \rx\n", b"x\r"])
def test_a_carriage_return_within_a_line_is_refused(content: bytes) -> None:
    changed = change("a.py", content, old_mode=None)
    name = "diff --git a/a.py b/a.py\nnew file mode 100644\n--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+"
    text = content.decode(errors="surrogateescape")
    patch = name + (text if text.endswith("\n") else f"{text}\n\\ No newline at end of file\n")
    report = read_report(JOB, raw(changed, patch=patch), PROFILE, SECRET)
    assert report.digest is None
    (refused,) = report.refusals
    assert refused.startswith("`a.py` gets a carriage return within a line")


def test_a_carriage_return_that_was_there_is_named_and_line_ends_of_windows_are_none() -> None:
    old = change("a.py", b"a\rb\nnew\n")
    patch = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n a\rb\n-old\n+new\n"
    report = read_report(JOB, raw(old, patch=patch), PROFILE, SECRET)
    assert report.refusals == ()
    assert report.warnings == ("`a.py` has a carriage return within a line, where some programs end the line",)
    report = read(change("a.txt", b"a\r\nb\r\n", old_mode=None))
    assert (report.refusals, report.warnings) == ((), ())


def test_bytes_that_are_no_text_come_in_exactly() -> None:
    patch = "diff --git a/l.py b/l.py\nnew file mode 100644\n--- /dev/null\n+++ b/l.py\n@@ -0,0 +1 @@\n+caf\udce9\n"
    for content, refusals in ((b"caf\xe9\n", 0), (b"caf\xe8\n", 1), ("caf\ufffd\n".encode(), 1)):
        report = read_report(JOB, raw(change("l.py", content, old_mode=None), patch=patch), PROFILE, SECRET)
        assert len(report.refusals) == refusals
        assert report.patch.endswith("+caf\U0010ffe9\n")
    assert "?" in read_report(JOB, raw(patch="\ud800"), PROFILE, SECRET).patch


@pytest.mark.parametrize("path", [".gitattributes", "docs/.gitattributes", ".GitAttributes"])
def test_what_changes_how_git_shows_files_is_named(path: str) -> None:
    (warning,) = read(change(path)).warnings
    assert warning == f"`{path}` can change how git shows, converts and merges files"


@given(st.text(max_size=400))
def test_a_path_in_a_sentence_is_one_line_of_code(path: str) -> None:
    shown = show_path(path)
    assert shown.startswith("`")
    assert shown.endswith("`")
    assert not set("`\r\n\t\u202e\u2028\x85\x0b\x0c") & set(shown[1:-1])


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


@pytest.mark.slow
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(raw(), JSON)))
def test_any_answer_is_either_read_or_refused(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BadArtifacts):
        read_report(JOB, answer, PROFILE, SECRET)
