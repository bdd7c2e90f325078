from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from handlers.cases.casebook import Pull, derive_reply_id, draft_reply
from handlers.context import Context
from handlers.rules import RepositoryRules
from handlers.text.report import ParsedReport
from handlers.words.pull_body import (
    find_edits,
    render_commit_message,
    render_marker,
    render_note,
    render_pull_body,
    render_pull_title,
)
from handlers.words.report_comment import (
    MAX_COMMENT,
    MAX_SUMMARY,
    MAX_TITLE,
    EndedJob,
    approvable,
    choose_headline,
    count_lines,
    draft_report,
    name_model,
    render_duration,
)
from handlers.words.status_comment import render_status
from runner.agents import AgentSpec
from runner.characters import show_path
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.model.caps import Caps, Scope
from runner.model.job import FileChange, Job, JobKind, JobState, Report
from runner.model.meter import Meter
from tests.support.jobs import NOON, make_job
from tests.support.meters import make_meter

PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n-one\n+two\n+three\n"
BODY = "fix staged\n\n## Summary\nIt lost the last chunk.\n\n## Root cause\nThe range ended early.\n"


def done(**changes: Any) -> Job:
    values = {
        "state": JobState.SUCCEEDED,
        "machine": "gpu-1",
        "base_commit": "ab" * 20,
        "started_at": NOON,
        "ended_at": NOON + timedelta(seconds=200),
    }
    return make_job(**{**values, **changes})


def result(**changes: Any) -> Report:
    values: dict[str, Any] = {
        "job_id": "0123456789",
        "body": BODY,
        "worklog": "looked, found",
        "pr_title": "Keep the last chunk",
        "repro": "import widgets",
        "patch": PATCH,
        "changes": (FileChange("a.py", "100644", b"two\nthree\n", "100644"),),
        "digest": "0123456789abcdef" * 4,
    }
    return Report(**{**values, **changes})


def make_context(
    secrets: tuple[str, ...] = (), *, url: str = "https://ptq.example", model: str | None = None, **more: Any
) -> Context:
    """The context of what is only rendered."""
    nothing, agents = cast("Any", None), {"mine": AgentSpec("mine", "command", model=model)}
    return Context(nothing, nothing, {}, agents, url, secrets, nothing, nothing, **more)


def render(
    job: Job | None = None,
    report: Report | None = None,
    secrets: tuple[str, ...] = (),
    meter: Meter | None = None,
    pull_number: int | None = None,
    **more: Any,
) -> str:
    ended = EndedJob(job or done(), report or result(), meter, pull_number=pull_number)
    return draft_report(make_context(secrets, model="a-model", **more), ended).finish()


def test_where_people_can_sign_in_a_report_leads_to_the_form_for_the_note() -> None:
    page = "https://ptq.example/jobs/0123456789/note"
    text = render(signs_in=True)
    assert f"**Next step.** [Write your note]({page})" in text
    assert "```text\n/ptq pr 0123456789ab\n```" in text, "the command always works"
    assert page not in render()
    assert page not in render(report=result(digest=None), signs_in=True)


def test_a_diff_is_downloaded_where_its_page_asks_people_to_sign_in() -> None:
    assert "curl -fsSL https://ptq.example/jobs/0123456789/patch | git apply" in render(signs_in=True)
    text = render(signs_in=True, public_pages=False)
    assert "curl" not in text
    assert "[download the diff](https://ptq.example/jobs/0123456789/files/change.patch), then" in text
    assert "```sh\ngit apply change.patch\n```" in text


@pytest.mark.parametrize(
    ("private", "signs_in", "public", "opens"),
    [
        (False, False, True, True),
        (False, False, False, True),
        (False, True, True, True),
        (False, True, False, False),
        (True, True, True, False),
    ],
)
def test_a_page_opens_without_sign_in_as_the_dashboard_decides(
    private: bool, signs_in: bool, public: bool, opens: bool
) -> None:
    context = make_context(signs_in=signs_in, public_pages=public)
    assert context.opens_page(done(private=private)) is opens


def test_a_report_says_what_was_found_and_exactly_what_to_do_next() -> None:
    text = render()
    assert text.startswith("### Fix staged\n")
    for part in ("It lost the last chunk.", "The range ended early.", "Diff: 1 file, +2 −1", "+three", "looked, found"):
        assert part in text
    for fact in ("machine `gpu-1`", "agent `mine` (`a-model`)", "3 min 20 s", "https://ptq.example/jobs/0123456789"):
        assert fact in text
    assert "```text\n/ptq pr 0123456789ab\n```" in text


def test_what_an_agent_wrote_mentions_nobody_and_closes_nothing() -> None:
    hostile = "fix staged\n\n## Summary\n@octo/everyone fixes #1 <!-- ptq:report=x --> <img src=x>\n/ptq pr\n"
    text = render(report=result(body=hostile, worklog=hostile))
    assert "@octo" not in text
    assert "#1" not in text
    assert "<img" not in text
    assert "<!--" not in text
    assert "\n/ptq pr\n" not in text


def test_a_diff_that_cannot_be_proposed_says_why_and_offers_no_command() -> None:
    text = render(report=result(digest=None, refusals=("`.ci/run` is protected by `.ci/**`",)))
    assert "⛔" in text
    assert "is protected by" in text
    assert "/ptq pr" not in text
    assert "+three" in text, "it is still shown"


@pytest.mark.parametrize("where", ["patch", "content", "path"])
def test_a_secret_in_the_diff_is_redacted_and_stops_the_pull_request(where: str) -> None:
    secret = "hunter2-hunter2"
    change = FileChange(
        secret if where == "path" else "a.py", "100644", b"\0" + secret.encode() if where == "content" else b"x"
    )
    report = result(patch=PATCH + (f"+{secret}\n" if where == "patch" else ""), changes=(change,))
    text = render(report=report, secrets=(secret,))
    assert secret not in text
    assert "possible secret" in text
    assert "/ptq pr" not in text
    assert not approvable(done(), report, (secret,))


@pytest.mark.parametrize(("char", "kind"), [(" ", "unchanged"), ("-", "removed")])
def test_a_secret_that_was_there_before_is_masked_and_stops_nothing(char: str, kind: str) -> None:
    line = f"{char}db = postgres://user:password@localhost/db"
    text = render(report=result(patch=PATCH.replace("@@ -1 +1,2 @@", f"@@ -1,2 +1,3 @@\n{line}")))
    assert "user:password" not in text
    assert f"\n{char}[redacted]\n-one\n" in text
    assert f"⚠️ 1 {kind} line with what looks like a secret, masked in the diff of `a.py`" in text
    assert "/ptq pr " in text
    assert "git apply" not in text
    assert "git apply" in render()


@pytest.mark.slow
def test_no_number_of_doubts_makes_the_report_too_long() -> None:
    nasty = tuple(f"`{number}](![<@&/{'<![' * 90}` is protected" for number in range(60))
    report = result(
        refusals=nasty,
        warnings=nasty,
        digest=None,
        body="<" * 200_000,
        worklog="@a " * 60_000,
        patch=PATCH + "+\u202e" * 50_000,
    )
    job = replace(done(), state=JobState.FAILED, failure="<" * 900 + "\n" + "\u202e" * 9000)
    assert len(render(job, report)) <= MAX_COMMENT


def test_invisible_characters_in_a_diff_are_written_out() -> None:
    text = render(report=result(patch=PATCH + "+\u202eevil\n", warnings=("`a.py` has invisible characters",)))
    assert "\u202e" not in text
    assert "U+202E" in text
    assert "⚠️" in text


@pytest.mark.slow
def test_a_diff_that_does_not_fit_is_listed_and_linked() -> None:
    text = render(report=result(patch=PATCH + "+x\n" * 40_000))
    assert len(text) <= MAX_COMMENT
    assert "too long for a comment" in text
    assert "modified  a.py" in text
    assert "/ptq pr 0123456789ab" in text


@pytest.mark.slow
def test_what_is_posted_is_never_too_long_with_its_marker_and_the_diff_is_whole_as_long_as_it_can_be() -> None:
    def post(length: int) -> str:
        body = render(report=result(patch=PATCH + "+" + "x" * length + "\n"))
        reply = draft_reply(derive_reply_id("report"), "report", done(), body, NOON)
        return f"{reply.marker}\n{reply.body}"

    bare = len(post(0))
    posted = [post(length) for length in range(MAX_COMMENT - bare - 150, MAX_COMMENT - bare + 50, 7)]
    whole = [text for text in posted if "+three" in text]
    assert 0 < len(whole) < len(posted)
    assert MAX_COMMENT - 100 < max(map(len, whole)) <= MAX_COMMENT


def test_a_secret_is_redacted_wherever_a_machine_says_it() -> None:
    secret = "hunter2-hunter2"
    job = replace(done(), state=JobState.FAILED, failure=f"setup failed with {secret}:\n+ export KEY={secret}")
    report = result(refusals=(f"`{secret}` is protected",), warnings=(f"`{secret}` is binary",), digest=None)
    text = render(job, report, (secret,))
    assert secret not in text
    assert "is protected" in text
    assert "is binary" in text


def test_what_is_quoted_above_is_not_in_the_rest_of_the_report() -> None:
    body = f"{BODY}\n## Test\nIt counts the chunks.\n\n## Open questions\nNone.\n"
    shown = render(report=result(body=body))
    assert shown.count("The range ended early.") == 1
    (rest,) = re.findall(r"<summary>The rest of the agent's report</summary>\n\n(.*?)\n\n</details>", shown, re.DOTALL)
    assert rest == "> ## Test\n> It counts the chunks.\n>\n> ## Open questions\n> None."
    long = render(report=result(body=body.replace("lost", "lost " * MAX_SUMMARY)))
    assert "<summary>The agent's full report</summary>" in long, "not all of the summary is above"
    assert "full report" not in render(report=result(body="fix staged\n\nIt lost the last chunk."))


def test_wrapped_paragraphs_are_joined_and_other_lines_are_not() -> None:
    wrapped = "The range of the last chunk ended one element too\nearly, so the list lost it."
    table = "| a column that is wide enough to be wrapped | b |\n|---|---|\n| 1 | 2 |"
    code = "```\nprint('a line that is long enough to look wrapped')\nprint(1)\n```"
    body = f"fix staged\n\n{wrapped}\n\n- {wrapped}\n\n{table}\n\n{code}\n\nFile: a.py\nLine: 7"
    quoted = [line.removeprefix("> ") for line in render(report=result(body=body)).splitlines()]
    joined = wrapped.replace("\n", " ")
    assert {joined, f"- {joined}", *table.split("\n"), *code.split("\n"), "File: a.py", "Line: 7"} <= {*quoted}


def test_a_secret_is_redacted_wherever_an_agent_says_it() -> None:
    secret = "hunter2-hunter2"
    body = f"fix staged\n\n## Summary\nIt used {secret}.\n\n## Root cause\nThat is {secret}.\n\n## Test\n{secret}\n"
    text = render(report=result(body=body, worklog=f"echo {secret}"), secrets=(secret,))
    assert secret not in text
    assert text.count("[redacted]") == 4


@pytest.mark.parametrize("part", ["body", "worklog", "summary"])
def test_a_secret_is_redacted_before_anything_is_cut(part: str) -> None:
    secret = "hunter2-" * 20
    head = "## Summary\n" * (part == "summary")
    for length in range(MAX_SUMMARY - 150, MAX_SUMMARY, 25) if part == "summary" else range(11_800, 12_000, 25):
        text = f"{head}{'x' * length}{secret}"
        report = result(**{"body" if part == "summary" else part: text})
        assert "hunter2" not in render(report=report, secrets=(secret,))


@pytest.mark.parametrize(
    ("state", "headline"),
    [(JobState.FAILED, "Not finished"), (JobState.CANCELLED, "Cancelled"), (JobState.LOST, "Lost")],
)
def test_a_run_that_came_to_nothing_says_why(state: JobState, headline: str) -> None:
    job = done(state=state, failure="the setup failed\nlast line of its log with ``` in it")
    assert "last line of its log" in draft_report(make_context(public_logs=True), EndedJob(job)).finish()
    text = draft_report(make_context(), EndedJob(job)).finish()
    assert headline in text
    assert "the setup failed. See [the log](https://ptq.example/jobs/0123456789#log) for details." in text
    assert "last line of its log" not in text
    prepared = replace(job, started_at=None)
    text = draft_report(make_context(), EndedJob(prepared)).finish()
    assert "last line of its log" in text, "no agent has run yet"
    assert "`/ptq retry` continues where it stopped" in text
    assert "`/ptq fix` starts over" in text


def test_only_a_job_that_succeeded_offers_its_diff() -> None:
    assert approvable(done(), result(), ())
    assert not approvable(done(state=JobState.FAILED, failure="no"), result(), ())
    assert not approvable(done(), None, ())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=2000), st.text(max_size=2000), st.text(max_size=300))
def test_whatever_an_agent_writes_the_next_step_stands_outside_of_it(body: str, worklog: str, patch: str) -> None:
    text = render(report=result(body=body, worklog=worklog, patch=patch or "x"))
    assert len(text) <= MAX_COMMENT
    fences = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    assert fences[-1].content == "/ptq pr 0123456789ab\n"


@pytest.mark.slow
@pytest.mark.parametrize("huge", ["```\n" * 50_000, "x" * 200_000, "- > " * 30_000, "@a " * 60_000])
def test_a_report_of_any_size_fits(huge: str) -> None:
    assert len(render(report=result(body=huge, worklog=huge, patch=huge))) <= MAX_COMMENT


PULL = Pull(
    job_id="0123456789",
    digest="0123456789abcdef" * 4,
    note="I read it: @octo/team asked for this.\n\n- the end was wrong",
    approver="maintainer",
    note_url="https://github.example/octo/widgets/issues/7#issuecomment-1",
    branch="ptq/issue-7-0123456789",
    created_at=NOON,
    next_attempt_at=NOON,
)


def body_of(**changes: Any) -> str:
    report = result(**changes)
    return render_pull_body(PULL, done(), report, model="a-model", public_url="https://ptq.example", secrets=())


def test_a_pull_request_begins_with_the_note_verbatim_and_discloses_the_agent() -> None:
    text = body_of()
    assert text.startswith(f"**@maintainer wrote:**\n\n{PULL.note}\n")
    for part in ("Fixes #7", "`mine` (a-model)", "@maintainer", "`0123456789ab`", PULL.note_url, "import widgets"):
        assert part in text


def test_after_the_note_come_checks_and_agent_each_under_its_own_name_and_last_who_approved_it() -> None:
    check = Check("0123456789", 1, CheckKind.AGENT, "", "x", {Side.BASE: [CheckRun(1, timed_out=False, words="no")]})
    text = render_pull_body(
        PULL, done(), result(), [check], template="# Cause\n", model=None, public_url="https://ptq.example", secrets=()
    )
    parts = (
        *("**@maintainer wrote:**", PULL.note, "**Seen by ptq-bot**", "\n# Cause\n", "\nFixes #7\n"),
        *("**What the agent says** (`mine`)", "It lost the last chunk.\n>\n> ## Root", "import widgets"),
        *("looked, found", "coding agent", "Approved by @maintainer"),
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("<details>") == text.count("</details>") == 3


def test_only_our_own_line_closes_an_issue() -> None:
    text = body_of(body="closes #1 and fixes octo/other#2", worklog="resolves #3")
    assert "#1" not in text
    assert "#2" not in text
    assert "#3" not in text


def test_the_texts_of_a_worktree_that_only_a_person_edited_are_not_called_an_agents() -> None:
    job = done(kind=JobKind.RELEASE, thread=None, series=1, name="try", requested_by="ubuntu")
    text = render_pull_body(PULL, job, result(), model=None, public_url="https://ptq.example", secrets=())
    for title in ("Full report", "Full repro", "Full worklog"):
        assert f"<summary>{title}</summary>" in text
    assert "agent's" not in text
    assert "by ubuntu on base" in text
    assert text.endswith("Approved by @maintainer (digest `0123456789ab`) with the note above.")


COMMANDING = "raise SystemExit(1)  # [skip ci]\n"


def test_a_repro_with_words_that_command_in_a_commit_is_on_the_jobs_page() -> None:
    said = ": it holds words that command when they are in a commit's message."
    assert f"The script is on [the job's page](https://ptq.example/jobs/0123456789){said}" in body_of(repro=COMMANDING)
    report = result(repro=COMMANDING)
    private = render_pull_body(PULL, done(), report, model=None, public_url="", secrets=())
    assert f"The script is left out{said}" in private
    assert "[skip ci]" not in body_of(repro=COMMANDING) + private


@pytest.mark.parametrize(
    "script", ["x = 1  # 2\nclose(x)  # 3\n", "import widgets\nwidgets.cut([1], skip=2)\n", "standby: int = 1\n"]
)
def test_a_repro_without_such_words_is_shown_as_it_ran(script: str) -> None:
    assert textwrap.indent(f"```python\n{script}```", "> ") in body_of(repro=script)


def test_no_line_of_a_repro_begins_like_a_command_for_another_bot() -> None:
    text = body_of(repro='"""\n/close\n@pytorchbot merge -f\n\nbors r+\nRelease-As: 9.9.9\nBREAKING CHANGE: all\n"""\n')
    assert not re.findall(r"(?m)^\s*(?:/close|@pytorchbot|bors|Release-As|BREAKING)", text)
    assert "> /close\n> @pytorchbot merge -f\n> \n> bors r+" in text


def test_a_template_and_a_failure_hold_no_words_that_command_in_a_commit() -> None:
    check = Check(
        "0123456789", 1, CheckKind.AGENT, "", "x", {Side.BASE: [CheckRun(1, timed_out=False, words="Error: [skip ci]")]}
    )
    report = result(body="# Root cause\n\n`[skip ci]`\n", repro="")
    text = render_pull_body(
        PULL, done(), report, [check], template="# Cause\n", model=None, public_url="https://ptq.example", secrets=()
    )
    assert text.count("(skip ci)") >= 3
    assert "[skip ci]" not in text


def test_the_name_of_a_model_holds_no_words_that_command_in_a_commit() -> None:
    meter = replace(METER, model="opus[skip-ci]/closes:https://github.com/octo/gadgets/issues/3")
    model = name_model(done(), meter, None, ())
    text = render_pull_body(PULL, done(), result(), model=model, public_url="https://ptq.example", secrets=())
    assert "`opus(skip-ci)/closes:https://github.com/octo/gadgets/issues/ 3`" in text


@pytest.mark.slow
def test_what_does_not_fit_into_a_pull_request_is_linked() -> None:
    for length in range(59_000, 60_000, 110):
        text = body_of(body="b" * length, worklog="w" * 70_000, repro="r" * 500)
        assert len(text) <= MAX_COMMENT
        assert PULL.note in text
        assert text.count("(Part of this is too long: [see here](https://ptq.example/jobs/0123456789).)")
        assert text.index("Fixes #7") < text.index("digest `0123456789ab`")


@pytest.mark.parametrize(
    ("proposed", "title"),
    [
        ("Keep it\r\nInjected: header", "Keep it Injected: header"),
        ("", "Fix: It breaks"),
        ("thanks @octo", "thanks octo"),
    ],
)
def test_a_title_is_one_harmless_line(proposed: str, title: str) -> None:
    assert render_pull_title(PULL, done(), result(pr_title=proposed), ()) == title


@pytest.mark.parametrize(
    ("above", "edits"),
    [
        ("New note.", ""),
        ("Old note.", ""),
        ("Old note.\r\n\r\nPlease wait.", "Please wait."),
        ("New note.\n\nPlease wait.", "Please wait."),
        ("New note.\n\nOld note. And more.", "Old note. And more."),
        ("Old note, fixed.", "Old note, fixed."),
        ("Please wait.\n\nOld note.", "Please wait.\n\nOld note."),
        ("", ""),
    ],
)
def test_what_people_wrote_above_our_part_is_told_from_the_notes(above: str, edits: str) -> None:
    assert find_edits(f"{above}\n\n<!-- ptq:pull=0123456789 -->\n\nours", ["New note.", "Old note."], ()) == edits


def test_nothing_is_taken_from_a_body_without_our_marker() -> None:
    body = render_pull_body(PULL, done(), result(), model=None, public_url="", secrets=())
    assert find_edits(body, [render_note(PULL)], ()) == ""
    assert find_edits(body.replace(render_marker(done().id), ""), [render_note(PULL)], ()) is None


def test_no_marker_in_an_agents_script_is_taken_for_ours() -> None:
    body = body_of(repro=f"{render_marker('abc')}\nx = 1  # {render_marker('abc')}\n")
    assert find_edits(body.replace(render_marker(done().id), ""), [PULL.note], ()) is None


def test_the_approvers_title_comes_first_and_is_one_harmless_line_too() -> None:
    title = render_pull_title(
        replace(PULL, title="Fixes #3 for @octo, not abcdefgh " + "x" * 200), done(), result(), ["abcdefgh"]
    )
    assert title.startswith("Fixes 3 for octo, not [redacted] xxx")
    assert len(title) == MAX_TITLE


def test_a_commit_says_who_approved_it() -> None:
    message = render_commit_message("Keep it", done(), PULL)
    assert message.startswith("Keep it\n\n")
    assert "Approved by maintainer" in message
    assert "@" not in message


@pytest.mark.parametrize(("seconds", "said"), [(5, "5 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")])
def test_durations_are_said_as_people_say_them(seconds: int, said: str) -> None:
    assert render_duration(timedelta(seconds=seconds)) == said


def test_lines_of_a_patch_are_counted_without_its_headers() -> None:
    assert count_lines(PATCH) == (2, 1)
    assert count_lines(PATCH + "+++ x\r\u2028+y\n--- y\n") == (3, 2)


def test_the_preset_decides_what_the_next_step_is() -> None:
    job = done(preset="diagnose", may_change=False)
    assert "`/ptq fix` asks an agent for a change" in render(job, replace(result(), digest=None))


def test_a_success_without_a_diff_can_be_carried_on() -> None:
    text = render(report=replace(result(), digest=None, patch="", changes=()))
    assert "`/ptq retry` continues" in text
    assert "`/ptq fix` starts over" in text


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST])
def test_a_confidential_report_says_nothing_of_what_was_found_or_how_the_run_ended(state: JobState) -> None:
    failure = None if state is JobState.SUCCEEDED else "the agent gave up: tokens are not checked"
    job = done(state=state, failure=failure, model="opus")
    report = result(body=f"security concern\n{BODY}", refusals=("`.ci/run` is protected",))
    text = render(job, report, meter=make_meter(turns=3, input_tokens=1000, cost_usd=0.42))
    assert text == ("The run has finished. The operator of this App will review the result privately.")
    assert not approvable(job, report, ())


METER = make_meter(turns=12, tool_calls=34, input_tokens=110_000, output_tokens=10_000, cost_usd=0.42)


def test_a_report_says_what_the_run_took() -> None:
    assert "12 turns, 34 tool calls, 120k tokens, $0.42" in render(meter=METER).splitlines()[-1]
    assert "unknown" in render(meter=Meter("j")).splitlines()[-1]
    assert "unknown" not in render(meter=None), "the agent never started"


def test_a_report_of_a_run_at_unknown_cost_says_what_was_capped_instead() -> None:
    def say(meter: Meter, *, caps_unpriced: bool) -> str:
        caps = {Scope.JOB: Caps(unpriced_turns=10)} if caps_unpriced else {}
        rules = RepositoryRules(done().repository, agent="mine", caps=caps)
        context = replace(make_context(url=""), repositories={rules.name: rules})
        return draft_report(context, EndedJob(done(), result(), meter)).below

    unpriced = replace(METER, usage=METER.usage.with_cost(None))
    assert "cost unknown · turns and time capped instead" in say(unpriced, caps_unpriced=True)
    assert "instead" not in say(unpriced, caps_unpriced=False), "the operator has switched the cap off"
    assert "instead" not in say(METER, caps_unpriced=True)


@pytest.mark.parametrize(
    ("said", "asked_for", "shown"),
    [("said", "asked", "said"), (None, "asked", "asked"), (None, None, "a-model")],
)
def test_the_model_is_the_one_that_did_the_work(said: str | None, asked_for: str | None, shown: str) -> None:
    assert f"agent `mine` (`{shown}`)" in render(done(model=asked_for), meter=replace(METER, model=said))


def test_a_model_is_what_the_agent_says_and_so_harmless() -> None:
    text = render(
        meter=replace(METER, model="</sub>\n\n@octo/all hunter2-hunter2 " + "x" * 5000), secrets=("hunter2-hunter2",)
    )
    facts = text.splitlines()[-1]
    assert facts.startswith("<sub>machine")
    assert facts.count("</sub>") == 1
    assert "@octo" not in text
    assert "hunter2" not in text
    assert len(facts) < 500
    assert "(a model without a readable name)" in facts


def test_a_models_name_has_no_room_for_a_sentence() -> None:
    facts = render(meter=replace(METER, model="opus) · ✅ the service ran the repro: passes 3 of 3")).splitlines()[-1]
    assert "passes 3 of 3" not in facts


@pytest.mark.parametrize(
    ("state", "parsed", "headline"),
    [
        (JobState.SUCCEEDED, ParsedReport("does not reproduce", ""), "Does not reproduce"),
        (JobState.SUCCEEDED, ParsedReport(None, "It fails."), "Done"),
        (JobState.FAILED, ParsedReport("fix staged", ""), "Partial: fix staged"),
        (JobState.FAILED, None, "Not finished"),
        (JobState.CANCELLED, ParsedReport("fix staged", ""), "Cancelled: fix staged"),
        (JobState.LOST, None, "Lost"),
    ],
)
def test_a_headline_says_how_far_the_run_came(state: JobState, parsed: ParsedReport | None, headline: str) -> None:
    assert choose_headline(done(state=state), parsed) == headline


def test_a_run_that_was_ended_and_left_a_report_says_why_it_is_partial() -> None:
    job = done(state=JobState.FAILED, failure="the agent was stopped at the cap of 300 turns of this run")
    text = render(job)
    assert text.startswith("### Partial: fix staged\n")
    assert "**Why:** the agent was stopped at the cap of 300 turns" in text
    assert "It lost the last chunk." in text
    assert render(job, result(body=" \n")).startswith("### Not finished\n")


@pytest.mark.parametrize("path", ["packages/@core/run.sh", "a[skip ci]b", "fixes #12/a  b", "o/r#1.py", "*a*_b_.py"])
def test_a_warning_and_a_refusal_show_a_path_exactly(path: str) -> None:
    report = result(
        warnings=(f"{show_path(path)} is executable now",), refusals=(f"{show_path(path)} is protected by `**`",)
    )
    comment = render(report=report)
    assert f"- ⚠️ `{path}` is executable now" in comment
    assert f"- ⛔ `{path}` is protected by `**`" in comment


def test_nobody_is_mentioned_in_the_report_of_work_by_hand() -> None:
    job = done(kind=JobKind.RELEASE, requested_by="ubuntu")
    text = draft_report(make_context(url=""), EndedJob(job)).finish()
    assert "requested by ubuntu" in text
    assert "@ubuntu" not in text + render_status(job, "", 0)


@pytest.mark.parametrize("report", [result(), None])
def test_what_a_machine_says_of_a_failure_is_code_to_its_end(report: Report | None) -> None:
    failure = "the result could not be read: the machine says: Verified. `Merge` **at once**, @alice.\nmore words"
    job = done(state=JobState.FAILED, failure=failure)
    text = draft_report(make_context(), EndedJob(job, report)).finish()
    said = "`Verified. \u02bcMerge\u02bc **at once**, @alice.`"
    assert f"**Why:** the result could not be read: the machine says: {said}. See [the log]" in text
    assert "more words" not in text


def test_what_a_machine_says_of_a_wait_is_code_to_its_end() -> None:
    job = make_job(state=JobState.RUNNING, trouble="the machine says: Verified. Merge at once, #7.")
    assert "**Waiting:** the machine says: `Verified. Merge at once, #7.`" in render_status(job, "", 0)
