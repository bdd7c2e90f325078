"""Our GraphQL query is one that GitHub's public schema allows, and refusals in an answer have the port's errors."""

from __future__ import annotations

from typing import Any

import pytest
from graphql import build_schema, graphql_sync, parse, validate

from bot.github.client import MINIMIZE
from bot.github.payloads import find_refusal
from handlers.ports import GitHubError, GitHubUnavailable, NotFound
from tests.support.descriptions import find_graphql_schema

NO_RIGHT = "Resource not accessible by integration"


@pytest.mark.slow
def test_github_understands_the_mutation_and_answers_what_we_expect() -> None:
    schema = build_schema(find_graphql_schema().read_text(), assume_valid=True)
    assert validate(schema, parse(MINIMIZE)) == []
    assert schema.mutation_type
    asked = list[Any]()

    def fold(_root: object, _info: object, **arguments: Any) -> Any:
        asked.append(arguments)
        return {"minimizedComment": {"isMinimized": True}}

    schema.mutation_type.fields["minimizeComment"].resolve = fold
    schema.get_type("Minimizable").resolve_type = lambda *_: "IssueComment"  # type: ignore[union-attr]
    answer = graphql_sync(schema, MINIMIZE, variable_values={"id": "IC_1"})
    assert answer.errors is None
    assert asked == [{"input": {"subjectId": "IC_1", "classifier": "OUTDATED"}}]


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("FORBIDDEN", GitHubError, 403),
        ("INSUFFICIENT_SCOPES", GitHubError, 403),
        ("NOT_FOUND", NotFound, 404),
        ("RATE_LIMITED", GitHubUnavailable, None),
        (None, GitHubError, 422),
    ],
)
def test_a_refusal_is_known_by_its_type(kind: str | None, error: type[Exception], status: int | None) -> None:
    found = find_refusal({"data": {"minimizeComment": None}, "errors": [{"type": kind, "message": NO_RIGHT}]})
    assert type(found) is error
    assert NO_RIGHT in str(found)
    assert getattr(found, "status", None) == status


def test_an_answer_without_errors_is_none() -> None:
    assert find_refusal({"data": {}}) is None
    assert find_refusal({"data": {}, "errors": []}) is None
