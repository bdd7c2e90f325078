"""Single checks of the doctor, and what becomes of one that stumbles."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from bot.doctor.examination import clean, look_at
from bot.doctor.findings import MAX_WORDS, DoctorVerdict, Finding, Part
from bot.doctor.host_checks import check_agent
from bot.gateway.proxy import Upstream
from bot.gateway.requests import RequestRule
from runner.agents import AgentSpec
from tests.support.doctor_models import make_models

ANSWERED = {
    200: (DoctorVerdict.OK, "accepts the key", ""),
    302: (DoctorVerdict.FAILED, "answers 302, a redirect", "the target of the redirect"),
    400: (DoctorVerdict.FAILED, "answers 400", "fix [agents.models.gateway]"),
    401: (DoctorVerdict.FAILED, "rejected the key (401)", "fix [agents.models.gateway] key"),
    404: (DoctorVerdict.FAILED, "answers 404", "without /v1"),
    429: (DoctorVerdict.WARNING, "rate limit reached", "wait"),
    503: (DoctorVerdict.WARNING, "answers 503", "try again"),
}


@pytest.mark.parametrize("status", ANSWERED)
async def test_models_are_well_only_when_they_say_which_there_are(status: int) -> None:
    verdict, words, fix = ANSWERED[status]
    async with make_models() as models, aiohttp.ClientSession() as session:
        upstream = Upstream(str(models.make_url(f"/{status}")), "k3y-k3y-k3y", {}, RequestRule())
        (found,) = [one async for one in check_agent(session, AgentSpec("models", "claude"), upstream)]
    assert found.verdict is verdict
    assert words in found.words
    assert fix in found.fix


async def stumble(said: str) -> AsyncIterator[Finding]:
    yield Part("machine gpu-1").ok("connection", "it answers")
    raise KeyError(said)


async def test_a_check_that_stumbles_says_over_what_and_where() -> None:
    before, found = await look_at("machine gpu-1", stumble("free_gb"))
    assert before.verdict is DoctorVerdict.OK
    assert (found.about, found.verdict) == ("machine gpu-1", DoctorVerdict.FAILED)
    line = stumble.__code__.co_firstlineno + 2
    assert f"the check failed: KeyError (test_doctor_checks.py:{line}): 'free_gb'" in found.words
    assert "log" not in found.fix


async def test_a_secret_at_the_place_where_an_error_is_cut_is_not_shown_in_half() -> None:
    for start in range(MAX_WORDS - 60, MAX_WORDS):
        _, found = await look_at("agent", stumble("x" * start + "hunter2-hunter2" + "x" * 10_000))
        shown = clean(found, frozenset({"hunter2-hunter2"}))
        assert len(shown.words) <= MAX_WORDS
        assert "hunt" not in shown.words
