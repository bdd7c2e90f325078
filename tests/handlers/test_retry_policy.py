"""What a refusal means, as a pure function over one table."""

from __future__ import annotations

import pytest

from handlers.effects.retry_policy import (
    MAX_ABSENCES,
    MAX_REFUSALS,
    MAX_WAIT_S,
    REFUSALS,
    Abandoned,
    Verdict,
    judge,
)
from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled, OverBudget, WritePriority
from runner.rows.effect_rows import EffectRow
from tests.support.jobs import NOON

ANSWERS = [
    NotInstalled(404, "octo/widgets"),
    NotFound(410, "This issue was deleted"),
    NotFound(404, "Not Found", "POST /repos/octo/locked-archive/issues/1/comments"),
    GitHubError(422, "Validation Failed: was submitted too quickly"),
    GitHubError(422, "Validation Failed: body is too long"),
    GitHubError(403, "Unable to create comment because issue is locked."),
    GitHubError(403, "Repository was archived so is read-only."),
    GitHubError(403, "This installation has been suspended"),
    GitHubError(301, "Moved Permanently"),
    GitHubError(451, "Repository access blocked"),
]


def tried(attempts: int = 0, *, refusals: int = 0, absences: int = 0) -> EffectRow:
    return EffectRow(next_attempt_at=NOON, attempts=attempts, refusals=refusals, absences=absences)


def count_tries(error: Exception, patience: int = MAX_REFUSALS) -> int:
    """How often an effect is tried while GitHub gives the same answer."""
    refusals = absences = 0
    while (verdict := judge(error, tried(refusals=refusals, absences=absences), patience=patience)).wait_s is not None:
        refusals, absences = verdict.refusals, verdict.absences
    return verdict.refusals


@pytest.mark.parametrize(("error", "row"), [*zip(ANSWERS, REFUSALS, strict=True)])
def test_each_row_is_the_first_that_fits_its_answer(error: GitHubError, row: object) -> None:
    assert next(other for other in REFUSALS if other.fits(error)) is row


@pytest.mark.parametrize("name", ["too quickly", "is locked", "archived", "suspended"])
def test_the_words_of_a_path_are_none_of_githubs(name: str) -> None:
    error = GitHubError(403, "Forbidden", f"DELETE /repos/octo/widgets/issues/1/labels/{name}")
    assert name in str(error)
    assert next(row for row in REFUSALS if row.fits(error)) is REFUSALS[-1]


def test_each_answer_is_believed_after_so_many_refusals() -> None:
    tries = [count_tries(error) for error in ANSWERS]
    assert tries == [MAX_REFUSALS, 1, MAX_ABSENCES, *[MAX_REFUSALS] * 7]
    assert [count_tries(error, patience=3) for error in ANSWERS] == [3, 1, *[3] * 8]


def test_only_absences_in_a_row_are_believed() -> None:
    absent, locked = NotFound(404, "Not Found"), GitHubError(403, "issue is locked")
    refused = judge(absent, tried(refusals=MAX_ABSENCES - 1))
    assert (refused.wait_s is not None, refused.absences) == (True, 1), "the others were of another kind"
    assert judge(absent, tried(refusals=MAX_ABSENCES - 1, absences=MAX_ABSENCES - 1)).wait_s is None
    assert judge(locked, tried(refusals=4, absences=4)).absences == 0, "what is locked is there"
    assert judge(GitHubUnavailable("no answer"), tried(refusals=4, absences=4)).absences == 4


def test_refusals_of_all_kinds_end_an_effect() -> None:
    absent = NotFound(404, "Not Found")
    assert judge(absent, tried(refusals=MAX_REFUSALS - 1)).wait_s is None


def test_only_what_has_a_text_goes_again_with_another() -> None:
    invalid = GitHubError(422, "Validation Failed")
    assert judge(invalid, tried(), has_text=True).wants_other_text
    assert judge(invalid, tried()) == Verdict("GitHub rejected the text", 10, 1)
    hurried = GitHubError(422, "was submitted too quickly")
    assert not judge(hurried, tried(), has_text=True).wants_other_text


def test_a_refusal_waits_longer_each_time() -> None:
    refused = GitHubError(403, "no")
    waits = [judge(refused, tried(refusals=refusals)).wait_s for refusals in range(12)]
    assert waits[:4] == [10, 20, 40, 80]
    assert waits[-1] == MAX_WAIT_S


@pytest.mark.parametrize(
    ("attempts", "asked_s", "wait_s"), [(1, 0, 2), (2, 0, 4), (50, 0, 300), (1, 30, 30), (1, 7200, MAX_WAIT_S)]
)
def test_silence_is_waited_out_and_never_counts_as_a_refusal(attempts: int, asked_s: float, wait_s: float) -> None:
    verdict = judge(GitHubUnavailable("no answer", asked_s), tried(attempts - 1, refusals=7))
    assert (verdict.wait_s, verdict.refusals) == (wait_s, 7)


def test_a_live_edit_without_a_turn_waits_without_a_word() -> None:
    over = OverBudget(900)
    assert judge(over, tried(), priority=WritePriority.LIVE) == Verdict(None, 60, 0, was_sent=False)
    assert judge(over, tried()).trouble == "GitHub's write limit is reached"
    assert judge(over, tried(), turn_wait_s=MAX_WAIT_S).wait_s == 900


def test_an_end_that_an_effect_names_itself_is_final_and_an_accident_of_ours_is_not() -> None:
    assert judge(Abandoned("it is sold"), tried()) == Verdict("it is sold", None, 0)
    accident = judge(ValueError("oops"), tried())
    assert (accident.wait_s, accident.is_ours) == (2, True)
