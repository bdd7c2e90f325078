"""GitHub's limits as pure functions: what an answer says, and when the next call may go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bot.github.limits import EVERY_BUCKET, Buckets, Limit, parse_exhausted, parse_refusal

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RESET = str(int(NOW.timestamp()) + 100)
SPENT = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": RESET, "x-ratelimit-resource": "core"}


def test_retry_after_comes_before_the_reset() -> None:
    limit = parse_refusal(403, {**SPENT, "retry-after": "7"}, "", NOW)
    assert limit == Limit(EVERY_BUCKET, NOW + timedelta(seconds=7))


@pytest.mark.parametrize("status", [403, 429])
def test_a_spent_bucket_is_named_and_a_second_is_added_to_its_reset(status: int) -> None:
    assert parse_refusal(status, SPENT, "", NOW) == Limit("core", NOW + timedelta(seconds=101))


@pytest.mark.parametrize("retry_after", ["soon", "-5", "nan", "inf", "Fri, 02 Jan 2026 03:05:05 GMT", ""])
def test_a_retry_after_that_is_no_number_counts_as_a_minute(retry_after: str) -> None:
    limit = parse_refusal(429, {"retry-after": retry_after}, "", NOW)
    assert limit == Limit(EVERY_BUCKET, NOW + timedelta(seconds=60))


@pytest.mark.parametrize("message", ["You have exceeded a secondary rate limit.", "API Rate Limit exceeded for 7"])
def test_a_403_without_headers_is_known_by_its_text(message: str) -> None:
    assert parse_refusal(403, {}, message, NOW) == Limit(EVERY_BUCKET, NOW + timedelta(seconds=60))


@pytest.mark.parametrize(("status", "message"), [(403, "Resource not accessible"), (404, "rate limit"), (200, "")])
def test_anything_else_is_no_limit(status: int, message: str) -> None:
    left = {"x-ratelimit-remaining": "12", "x-ratelimit-reset": RESET}
    assert parse_refusal(status, left, message, NOW) is None


@pytest.mark.parametrize("reset", ["", "tomorrow", "-1", "9" * 20])
def test_a_reset_that_cannot_be_read_is_left_alone(reset: str) -> None:
    assert parse_exhausted({"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}) is None


def test_a_bucket_opens_again_at_its_reset() -> None:
    buckets = Buckets()
    assert buckets.wait_s(NOW) == 0
    buckets.note(parse_exhausted(SPENT), NOW)
    assert buckets.wait_s(NOW) == 101
    assert buckets.wait_s(NOW + timedelta(seconds=101)) == 0


def test_a_reset_in_a_thousand_years_silences_us_for_a_day() -> None:
    buckets = Buckets()
    buckets.note(parse_exhausted({**SPENT, "x-ratelimit-reset": "9" * 11}), NOW)
    assert buckets.wait_s(NOW) == 24 * 3600
    assert buckets.wait_s(NOW + timedelta(days=1)) == 0
