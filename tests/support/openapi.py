"""Holds requests and answers against GitHub's own OpenAPI description.

This file refuses to know who sent a request or who answered it: it sees only what travelled.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from jsonschema.exceptions import ValidationError, best_match  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from openapi_schema_validator import OAS30ReadValidator, OAS30WriteValidator
from referencing import Registry
from referencing.jsonschema import DRAFT4

from tests.support.descriptions import find_openapi

Schema = Mapping[str, Any]
_DESCRIPTION = "github:"
_BASIC_ERROR: Schema = {
    "allOf": [{"$ref": f"{_DESCRIPTION}#/components/schemas/basic-error"}],
    "type": "object",
    "required": ["message"],
}
GRAPHQL = "/graphql"
"""It has a description of its own: `tests/bot/test_graphql.py` compares our queries with it."""
_ALWAYS_POSSIBLE = frozenset({301, 302, 307, 400, 401, 403, 404, 429})
"""GitHub answers these anywhere, documented or not: redirects of renamed repositories, refusals, rate limits."""


class DescriptionMismatch(AssertionError):  # noqa: N818
    """A request or an answer that GitHub's description does not allow."""


class Exchange(Protocol):
    """One request and its answer, as they travelled. `path` is below the API's root; `status` is 0 for no answer."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> Mapping[str, str]: ...
    @property
    def request_body(self) -> bytes: ...
    @property
    def status(self) -> int: ...
    @property
    def response_body(self) -> bytes: ...


def _unless_null(keyword: Any) -> Any:
    """GitHub writes `nullable` beside `allOf`, `oneOf` and `enum` too, and means it; OpenAPI 3.0 ignores it there."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not (instance is None and schema.get("nullable")):
            yield from keyword(validator, value, instance, schema) or ()

    return check


def _understand_nullable(validator_class: Any) -> Any:
    keywords = ("allOf", "anyOf", "oneOf", "enum")
    return extend(validator_class, {word: _unless_null(validator_class.VALIDATORS[word]) for word in keywords})


_RequestValidator = _understand_nullable(OAS30WriteValidator)
_AnswerValidator = _understand_nullable(OAS30ReadValidator)


class _Kind(IntEnum):
    """What a segment of a path template stands for, the most telling kind first."""

    LITERAL = 0
    NUMBER = 1
    WORD = 2
    PATH = 3


@dataclass(slots=True)
class _Branch:
    """One place in the tree of path templates: what may follow, and the template that ends here."""

    next: dict[tuple[_Kind, str], _Branch] = field(default_factory=dict)
    template: str | None = None

    def grow(self, step: tuple[_Kind, str]) -> _Branch:
        return self.next.setdefault(step, _Branch())

    def match(self, segments: list[str]) -> Iterator[str]:
        """Every template that fits, the most telling first."""
        if not segments:
            if self.template:
                yield self.template
            return
        for kind, text in ((_Kind.LITERAL, segments[0]), (_Kind.NUMBER, ""), (_Kind.WORD, ""), (_Kind.PATH, "")):
            branch = self.next.get((kind, text))
            if branch and (kind is not _Kind.NUMBER or segments[0].isdecimal()):
                reach = len(segments) if kind is _Kind.PATH else 1
                for taken in range(1, reach + 1):
                    yield from branch.match(segments[taken:])


class OpenApi:
    """GitHub's description, ready to check exchanges."""

    def __init__(self) -> None:
        self._document = _read_document()
        self._registry: Any = Registry().with_resource(_DESCRIPTION, DRAFT4.create_resource(self._document))
        self._root = _Branch()
        for template in self._document["paths"]:
            functools.reduce(_Branch.grow, self._steps_of(template), self._root).template = template
        self._validators: dict[tuple[bool, str], Any] = {}

    def check(self, exchange: Exchange) -> None:
        """Raise `DescriptionMismatch` unless GitHub would understand the request and could give this answer."""
        self.check_request(exchange)
        if exchange.status:
            self.check_answer(exchange)

    def check_request(self, exchange: Exchange) -> None:
        """Raise `DescriptionMismatch` unless the path, the query and the body are as described."""
        if exchange.path == GRAPHQL:
            return
        template, operation = self._find_operation(exchange)
        where = f"{exchange.method} {exchange.path}"
        self._check_query(where, operation, exchange.query)
        self._check_request_body(where, template, exchange.method, operation, exchange.request_body)

    def check_answer(self, exchange: Exchange) -> None:
        """Raise `DescriptionMismatch` unless the status is possible here and the body has its shape."""
        if exchange.path == GRAPHQL:
            return
        template, operation = self._find_operation(exchange)
        where = f"answer {exchange.status} to {exchange.method} {exchange.path}"
        answers = operation["responses"]
        status = str(exchange.status)
        if status in answers:
            described = self._resolve(answers[status])
            pointer = _pointer("paths", template, exchange.method.lower(), "responses", status)
            pointer = answers[status].get("$ref", pointer).removeprefix("#")
            self._check_documented_body(where, described, pointer, exchange.response_body)
        elif exchange.status in _ALWAYS_POSSIBLE:
            validator = self._make_validator(_AnswerValidator, _BASIC_ERROR)
            _raise_first(where, validator, _parse_json(where, exchange.response_body))
        elif exchange.status < 500:
            raise DescriptionMismatch(f"{where}: not documented; documented are {', '.join(answers)}")

    def describe_component(self, section: str, name: str) -> Mapping[str, Any]:
        """A named part of the description, such as a schema."""
        found: Mapping[str, Any] = self._document["components"][section][name]
        return found

    def _steps_of(self, template: str) -> Iterator[tuple[_Kind, str]]:
        parameters = (self._resolve(found) for found in self._parameters_of(template))
        kinds = {f"{{{found['name']}}}": _kind_of(found) for found in parameters if found["in"] == "path"}
        for segment in _segments_of(template):
            yield (kinds.get(segment, _Kind.WORD), "") if "{" in segment else (_Kind.LITERAL, segment)

    def _parameters_of(self, template: str) -> Iterator[Mapping[str, Any]]:
        for operation in self._document["paths"][template].values():
            yield from operation.get("parameters", ())

    def _find_operation(self, exchange: Exchange) -> tuple[str, Mapping[str, Any]]:
        method = exchange.method.lower()
        for template in self._root.match(_segments_of(exchange.path)):
            if operation := self._document["paths"][template].get(method):
                return template, operation
        raise DescriptionMismatch(f"{exchange.method} {exchange.path}: GitHub describes no such operation")

    def _check_query(self, where: str, operation: Mapping[str, Any], query: Mapping[str, str]) -> None:
        described = [self._resolve(parameter) for parameter in operation.get("parameters", ())]
        known = {parameter["name"]: parameter for parameter in described if parameter["in"] == "query"}
        if unknown := query.keys() - known.keys():
            raise DescriptionMismatch(f"{where}: query parameter {', '.join(sorted(unknown))} is not described")
        for name, parameter in known.items():
            if name in query:
                self._check_query_value(f"{where}: query parameter {name}", parameter["schema"], query[name])
            elif parameter.get("required"):
                raise DescriptionMismatch(f"{where}: query parameter {name} is required")

    def _check_query_value(self, where: str, schema: Schema, text: str) -> None:
        validator = self._make_validator(_RequestValidator, schema)
        if not any(validator.is_valid(reading) for reading in _readings_of(text)):
            raise DescriptionMismatch(f"{where}: {text!r} does not fit {json.dumps(schema)[:300]}")

    def _check_request_body(
        self, where: str, template: str, method: str, operation: Mapping[str, Any], body: bytes
    ) -> None:
        described = operation.get("requestBody")
        if not described:
            if body not in (b"", b"{}", b"null"):
                raise DescriptionMismatch(f"{where}: takes no body, got {body[:100]!r}")
            return
        if not body and not described.get("required"):
            return
        content = described["content"].get("application/json")
        if content is None:
            return
        value = _parse_json(where, body)
        pointer = _pointer("paths", template, method.lower(), "requestBody", "content", "application/json", "schema")
        self._check_value(f"{where}: body", _RequestValidator, pointer, value)
        self._refuse_unknown_fields(where, content["schema"], value)

    def _refuse_unknown_fields(self, where: str, schema: Schema, value: Any) -> None:
        """Stricter than the description: GitHub ignores a field that it does not know, but we meant something by it."""
        known = self._fields_of(schema)
        if not isinstance(value, dict) or not known or schema.get("additionalProperties"):
            return
        if unknown := value.keys() - known:
            raise DescriptionMismatch(f"{where}: body: {', '.join(sorted(unknown))} is not described")

    def _fields_of(self, schema: Schema) -> set[str]:
        schema = self._resolve(schema)
        choices = (choice for word in ("allOf", "anyOf", "oneOf") for choice in schema.get(word, ()))
        return set(schema.get("properties", ())).union(*map(self._fields_of, choices))

    def _check_documented_body(self, where: str, described: Mapping[str, Any], pointer: str, body: bytes) -> None:
        content = described.get("content", {})
        if not content:
            if body:
                raise DescriptionMismatch(f"{where}: has no body, got {body[:100]!r}")
        elif "application/json" in content:
            value = _parse_json(where, body)
            self._check_value(where, _AnswerValidator, f"{pointer}/content/application~1json/schema", value)

    def _check_value(self, where: str, validator_class: Any, pointer: str, value: Any) -> None:
        key = (validator_class is _RequestValidator, pointer)
        if key not in self._validators:
            self._validators[key] = self._make_validator(validator_class, {"$ref": f"{_DESCRIPTION}#{pointer}"})
        _raise_first(where, self._validators[key], value)

    def _make_validator(self, validator_class: Any, schema: Schema) -> Any:
        return validator_class(schema, registry=self._registry, format_checker=validator_class.FORMAT_CHECKER)

    def _resolve(self, thing: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in thing:
            steps = thing["$ref"].removeprefix("#/").split("/")
            thing = functools.reduce(lambda node, step: node[step], steps, self._document)
        return thing


def _segments_of(path: str) -> list[str]:
    return path.strip("/").split("/")


def _kind_of(parameter: Mapping[str, Any]) -> _Kind:
    if parameter.get("x-multi-segment"):
        return _Kind.PATH
    return _Kind.NUMBER if parameter["schema"].get("type") == "integer" else _Kind.WORD


def _pointer(*steps: str) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def _readings_of(text: str) -> Iterator[object]:
    """A query value is text; it fits its schema when one reading of it does."""
    yield text
    if text.removeprefix("-").isdecimal():
        yield int(text)
    if text in ("true", "false"):
        yield text == "true"
    yield text.split(",")


def _parse_json(where: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise DescriptionMismatch(f"{where}: body is no JSON ({error}): {body[:100]!r}") from error


def _raise_first(where: str, validator: Any, value: Any) -> None:
    error = best_match(validator.iter_errors(value))
    if error is not None:
        raise DescriptionMismatch(f"{where}: {error.json_path}: {error.message[:500]}")


@functools.cache
def _read_document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(find_openapi().read_bytes())
    return document


@functools.cache
def load_openapi() -> OpenApi:
    """One for the whole process, which keeps the validators that it has made."""
    return OpenApi()
