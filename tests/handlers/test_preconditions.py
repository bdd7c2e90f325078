"""What speaks against a job on an issue, in the words of strangers' pull requests."""

from __future__ import annotations

import pytest

from handlers.jobs.preconditions import closes
from handlers.ports import MentioningPull


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("Fixes #5", True),
        ("closes: octo/widgets#5", True),
        ("resolves https://github.com/octo/widgets/issues/5.", True),
        ("fixes #55", False),
        ("see #5", False),
        ("#5 fixes #" + "1" * 5000, False),
    ],
)
def test_a_pull_request_closes_the_issue_that_it_says(body: str, found: bool) -> None:
    """Python reads no number of more than 4,300 digits, and anybody may write one."""
    assert closes(MentioningPull("octo/widgets", 7, "drive-by", body), "octo/widgets", 5) == found
