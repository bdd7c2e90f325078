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

from jsonschema_rs import Draft4Validator, ValidationError

from tests.support.descriptions import find_openapi

Schema = Mapping[str, Any]
_BASIC_ERROR: Schema = {
    "allOf": [{"$ref": "#/components/schemas/basic-error"}],
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
        self._root = _Branch()
        for template in self._document["paths"]:
            functools.reduce(_Branch.grow, self._steps_of(template), self._root).template = template
        self._schemas: dict[str, Any] = {}
        """Named schemas as `_allow_null` makes them."""
        self._validators: dict[str, Draft4Validator] = {}
        """By the place of their schema in the description."""

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
            validator = self._make_validator(_BASIC_ERROR)
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
        validator = self._make_validator(schema)
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
        self._check_value(f"{where}: body", pointer, value)
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
            self._check_value(where, f"{pointer}/content/application~1json/schema", value)

    def _check_value(self, where: str, pointer: str, value: Any) -> None:
        if pointer not in self._validators:
            self._validators[pointer] = self._make_validator({"$ref": f"#{pointer}"})
        _raise_first(where, self._validators[pointer], value)

    def _make_validator(self, schema: Schema) -> Draft4Validator:
        """A validator with the schemas to which this one refers, and no more of the description: that is long."""
        schema, referred = _allow_null(self._resolve(schema)), dict[str, Any]()
        self._gather(schema, referred)
        return Draft4Validator({**schema, "components": {"schemas": referred}}, validate_formats=True)

    def _gather(self, node: Any, referred: dict[str, Any]) -> None:
        """Add every schema to which the node refers."""
        if isinstance(node, list):
            for each in node:
                self._gather(each, referred)
        elif isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/components/schemas/").partition("/")[0]
            if name and name not in referred:
                referred[name] = self._schemas.get(name) or _allow_null(self.describe_component("schemas", name))
                self._schemas[name] = referred[name]
                self._gather(referred[name], referred)
            for each in node.values():
                self._gather(each, referred)

    def _resolve(self, thing: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in thing:
            steps = [_unescape(step) for step in thing["$ref"].removeprefix("#/").split("/")]
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


def _raise_first(where: str, validator: Draft4Validator, value: Any) -> None:
    if not validator.is_valid(value):
        error = _find_cause(next(iter(validator.iter_errors(value))))
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        raise DescriptionMismatch(f"{where}: ${place}: {error.message[:500]}")


def _find_cause(error: ValidationError) -> ValidationError:
    """Why a value fits no branch: the error that is deepest in it, of the last branch among equals: the others are
    often `null`."""
    while branches := getattr(error.kind, "context", None):
        error = max(reversed([branch[0] for branch in branches]), key=lambda each: len(each.instance_path))
    return error


def _allow_null(node: Any) -> Any:
    """Write `nullable` as JSON Schema. GitHub writes it beside `allOf`, `oneOf` and `enum`, too, and means it."""
    if isinstance(node, list):
        return [_allow_null(each) for each in node]
    if not isinstance(node, dict):
        return node
    schema = {word: _allow_null(each) for word, each in node.items()}
    return {"anyOf": [{"type": "null"}, schema]} if schema.get("nullable") is True else schema


def _unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


@functools.cache
def _read_document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(find_openapi().read_bytes())
    return document


@functools.cache
def load_openapi() -> OpenApi:
    """One for the whole process, which keeps the validators that it has made."""
    return OpenApi()
