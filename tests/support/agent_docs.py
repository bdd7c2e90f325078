"""The tables of `docs/agents.md`, from the registry of backends and from what their transcripts show.

`python -m tests.support.agent_docs` writes them into the page; a test says when that is due.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from runner.agents import BACKENDS, Launch, Run, build_agent
from runner.agents.events import EventKind, Tally
from runner.agents.prices import AS_OF, PRICES
from runner.agents.protocol import AgentSpec
from runner.model.ending import Ending
from tests.support.agent_runs import (
    HAPPENINGS,
    WRITTEN_BY_HAND,
    list_ended_by_service,
    list_judged,
    list_speaking,
    read_events,
)

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
COMMAND = "python -m tests.support.agent_docs"

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
_RUN = Run(session_id="a-session")


def render(page: str) -> str:
    """The page with its tables as they ought to be. Raises `KeyError` for a table that nobody knows."""
    return _BLOCK.sub(lambda block: block[1] + TABLES[block[2]](), page)


def show_features() -> str:
    """What each backend can do, by what it gives when it is launched."""
    rows = [[f"`{kind}`", *_list_features(kind)] for kind in BACKENDS]
    titles = ("kind", "program", "prompt", "end known from", "model", "thinking", "skills", "own caps")
    return _table([*titles, "tokens", "money"], rows)


def show_levels() -> str:
    """The levels of thinking of each backend that has some."""
    agents = {kind: build_agent(AgentSpec("mine", kind)) for kind in BACKENDS}
    rows = [[f"`{kind}`", ", ".join(f"`{level}`" for level in agent.levels)] for kind, agent in agents.items()]
    return _table(["kind", "levels"], [row for row in rows if row[1]])


def show_verdicts() -> str:
    """What happened, and what exit status and verdict it got. Bold is an exit status that tells something else."""
    cells = {(judged.name, judged.kind): judged for judged in list_judged()}

    def show(name: str, kind: str) -> str:
        judged = cells.get((name, kind))
        if judged is None:
            return "–"
        misleading = 0 if judged.ending is not Ending.FINISHED else None
        statuses = (f"**{status}**" if status == misleading else str(status) for status in judged.exit_statuses)
        return f"{' or '.join(statuses)}, {judged.ending.value}"

    kinds = list_speaking()
    rows = [[words, *(show(name, kind) for kind in kinds)] for name, words in HAPPENINGS.items()]
    return _table(["what happened", *(kind + " \\*" * (kind in WRITTEN_BY_HAND) for kind in kinds)], rows)


def show_service_ends() -> str:
    """What the service itself ends, for every backend alike."""
    rows = [[row.what, row.ending.value, f'"… {row.says} …"'] for row in list_ended_by_service()]
    return _table(["what happened", "verdict", "example from the report"], rows)


def show_prices() -> str:
    """How old the table of prices is, and what is in it."""
    return f"It has {len(PRICES)} models, as their vendors listed them on {AS_OF.isoformat()}.\n"


def _list_features(kind: str) -> list[str]:
    bare, speaks = _launch(kind), kind in list_speaking()
    caps = {"turns": Run(_RUN.session_id, max_turns=7), "money": Run(_RUN.session_id, max_cost_usd=7.0)}
    return [
        "yours" if kind == "command" else f"`{bare.argv[0]}`",
        "standard input" if bare.prompt_on_stdin else "`PTQ_PROMPT_FILE`",
        "its events" if speaks else "exit status",
        _yes(_launch(kind, model="m") != bare),
        _yes(_launch(kind, thinking="t") != bare),
        f"`~/{bare.skills_folder}`" if bare.skills_folder else "no",
        ", ".join(name for name, run in caps.items() if _launch(kind, run) != bare) or "none",
        _show_tokens(kind, bare) if speaks else "no",
        "reported" if speaks and _tally(kind).usage.cost_usd is not None else "estimated" if speaks else "no",
    ]


def _show_tokens(kind: str, launch: Launch) -> str:
    events = [*read_events(kind, "finished")]
    live = launch.tail or any(event.usage and event.kind is EventKind.USAGE for event in events)
    return "live" if live else "at its end" if any(event.usage for event in events) else "no"


def _launch(kind: str, run: Run = _RUN, *, model: str | None = None, thinking: str | None = None) -> Launch:
    command = ("agent",) if kind == "command" else ()
    return build_agent(AgentSpec("mine", kind, command, model=model, thinking=thinking)).launch(run)


def _tally(kind: str) -> Tally:
    return Tally().add(read_events(kind, "finished"))


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n" for cells in lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "features": show_features,
    "levels": show_levels,
    "verdicts": show_verdicts,
    "service_ends": show_service_ends,
    "prices": show_prices,
}


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
