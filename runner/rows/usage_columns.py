"""Usage in columns: of one row, or summed over many. `meters` and `model_calls` use the same column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, func

from runner.model.usage import Usage

COUNTS = ("turns", "input_tokens", "cached_tokens", "output_tokens", "run_s", "output_bytes")
"""Columns that are never NULL. `model_calls` does not have all of them."""

COLUMNS = (*COUNTS, "cost_usd")
"""`cost_usd` is NULL if it is unknown."""


def write_usage(usage: Usage, table: Table) -> dict[str, Any]:
    """The values of the table's columns."""
    return {name: getattr(usage, name) for name in COLUMNS if name in table.c}


def read_usage(row: Mapping[str, Any]) -> Usage:
    """The usage in a row of `meters`, which may have other columns, too."""
    return Usage(jobs=1, **{name: row[name] for name in COUNTS}).with_cost(row["cost_usd"])


def sum_usage(table: Table) -> Sequence[ColumnElement[Any]]:
    """The sum of a group's rows, as columns named like the fields of `Usage`, all but `jobs`.

    An empty row of an outer join counts as 0.
    """
    names = {name: name for name in COUNTS if name in table.c} | {"known_usd": "cost_usd"}
    # PostgreSQL sums integers to a decimal. The cast keeps them integers.
    sums = [
        func.coalesce(func.sum(table.c[column]), 0).cast(table.c[column].type).label(name)
        for name, column in names.items()
    ]
    unpriced = func.count(table.c.job_id) - func.count(table.c.cost_usd)
    return (*sums, unpriced.label("unpriced"))
