"""Reads and writes usage in table columns, and sums it up. `meters` and `model_calls` use the same column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Table, case, func

from runner.model.caps import Caps
from runner.model.usage import Usage

COUNTS = ("turns", "input_tokens", "cached_tokens", "output_tokens", "run_s", "output_bytes")
"""The columns that are never NULL. `model_calls` does not have all of them."""

COLUMNS = (*COUNTS, "known_usd", "cost_usd")
"""All columns. `cost_usd` is NULL if the cost is unknown.

`model_calls` has no `known_usd`, because the cost of one answer is either known or unknown.
"""


def write_usage(usage: Usage, table: Table) -> dict[str, Any]:
    """The values of the table's columns."""
    return {name: getattr(usage, name) for name in COLUMNS if name in table.c}


def read_usage(row: Mapping[str, Any]) -> Usage:
    """The usage in a row of `meters`. The row may have other columns, too."""
    counts = {name: row[name] for name in (*COUNTS, "known_usd")}
    return Usage(jobs=1, unpriced=int(row["cost_usd"] is None), **counts).as_one()


def cut_self_reported(table: Table, bounds: Caps) -> dict[str, ColumnElement[Any]]:
    """Columns of `meters`, in which self-reported values are cut to `bounds`."""
    row = table.c
    most_input = _cut(row.input_tokens, bounds.tokens)
    most = {
        "turns": case(
            (row.cost_usd.is_(None), _cut(row.turns, bounds.unpriced_turns)), else_=_cut(row.turns, bounds.turns)
        ),
        "input_tokens": most_input,
        "output_tokens": _cut(row.output_tokens, None if bounds.tokens is None else bounds.tokens - most_input),
        "known_usd": _cut(row.known_usd, bounds.cost_usd),
    }
    return {name: case((row.is_self_reported, value), else_=row[name]) for name, value in most.items()}


def _cut(value: ColumnElement[Any], most: Any) -> ColumnElement[Any]:
    return value if most is None else case((value > most, most), else_=value)


def sum_usage(
    table: Table, counted: Mapping[str, ColumnElement[Any]] = MappingProxyType({})
) -> Sequence[ColumnElement[Any]]:
    """Columns with the sum of a group's rows. They have the names of the fields of `Usage`, without `jobs`.

    An empty row of an outer join counts as 0. `counted` contains columns that replace the table's, by name.
    """
    counts = [name for name in COUNTS if name in table.c]
    known = "known_usd" if "known_usd" in table.c else "cost_usd"
    columns = {name: counted.get(name, table.c[name]) for name in (*counts, known)}
    unpriced = {
        name: case((table.c.cost_usd.is_(None), columns[name]), else_=0)
        for name in ("turns", "run_s")
        if name in counts
    }
    return (
        *(_sum(columns[name], table.c[name]).label(name) for name in counts),
        _sum(columns[known], table.c[known]).label("known_usd"),
        (func.count(table.c.job_id) - func.count(table.c.cost_usd)).label("unpriced"),
        *(_sum(value, table.c[name]).label(f"unpriced_{name}") for name, value in unpriced.items()),
    )


def _sum(value: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of a value, in the column's type, because PostgreSQL's sum of integers is a decimal."""
    return func.coalesce(func.sum(value), 0).cast(column.type)
