"""The floors, the sizes and the manners of the house: each rule holds here, and is shown to be able to fail."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gidgethub.routing import Router
from gidgethub.sansio import Event

from handlers.triggers.router import ROUTER
from runner.model.job import KINDS, JobKind, JobState
from tests.support import house
from tests.support.house import Source

ROOT = Path(__file__).parents[1]
PRODUCT = house.read_sources(ROOT, house.PRODUCT)
TESTS = house.read_sources(ROOT, ["tests"])
EVERYTHING = (*PRODUCT, *TESTS)

Rule = Callable[[Sequence[Source]], list[str]]


def report(complaints: Sequence[str]) -> str:
    return "\n".join(["", *complaints])


@pytest.mark.parametrize(
    ("rule", "sources"),
    [
        (house.find_upward_imports, PRODUCT),
        (house.find_imports_of_demo, PRODUCT),
        (house.find_imports_of_the_standin, PRODUCT),
        (house.find_imports_between_packages, PRODUCT),
        (house.find_strays, PRODUCT),
        (house.find_foreign_imports, PRODUCT),
        (house.find_cycles, EVERYTHING),
        (house.find_imports_in_functions, PRODUCT),
        (house.find_missing_docstrings, PRODUCT),
        (house.find_vague_names, EVERYTHING),
        (house.find_shared_class_names, PRODUCT),
        (house.find_normalisations, PRODUCT),
        (house.find_parsers, PRODUCT),
        (house.find_shared_threads, PRODUCT),
        (house.find_mocks, TESTS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_house_keeps_its_rule(rule: Rule, sources: Sequence[Source]) -> None:
    complaints = rule(sources)
    assert not complaints, report(complaints)


def test_every_event_goes_to_one_callback() -> None:
    complaints = house.find_shared_events(ROUTER)
    assert not complaints, report(complaints)


def test_the_program_on_machines_needs_only_an_old_python() -> None:
    machine_side = [source for source in PRODUCT if source.name.startswith(f"{house.MACHINE_SIDE}.")]
    complaints = [complaint for source in machine_side for complaint in house.find_what_a_machine_lacks(source)]
    assert len(machine_side) > 5
    assert not complaints, report(complaints)


def test_the_whole_product_was_read() -> None:
    assert {source.floor for source in PRODUCT} == set(house.PRODUCT)


# From here on: every rule complains about a made-up source that breaks it, and only about that.


def made_up(**texts: str) -> tuple[Source, ...]:
    """Sources from `floor__module="text"`; a name that ends in `__` is a package."""
    return tuple(
        Source(name.removesuffix("__").replace("__", "."), text, name.endswith("__")) for name, text in texts.items()
    )


@pytest.mark.parametrize(
    "text",
    [
        "import bot.app",
        "from bot import app",
        "from bot.app import build",
        "from ..bot import app",
        "import tests.world",
    ],
)
def test_an_upward_import_is_found(text: str) -> None:
    (complaint,) = house.find_upward_imports(made_up(handlers__labels=text))
    assert complaint.startswith("handlers.labels:1 imports ")
    assert "arrows go down" in complaint


def test_an_upward_import_is_found_even_when_only_for_types() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from handlers import ports"
    assert len(house.find_upward_imports(made_up(runner__job=text))) == 1


def test_a_downward_import_is_fine() -> None:
    assert house.find_upward_imports(made_up(bot__app="import handlers.labels, runner.job, json")) == []


def test_only_the_command_line_may_import_the_demo() -> None:
    text = "from bot.demo import github"
    sources = made_up(bot__cli__main=text, bot__demo__story=text, bot__app=text, bot__pages="from bot import demo")
    assert [complaint.split()[0] for complaint in house.find_imports_of_demo(sources)] == [
        "bot.app:1",
        "bot.pages:1",
    ]


@pytest.mark.parametrize(
    ("name", "text", "complaints"),
    [
        ("handlers__text__links", "from handlers.words import replies", 1),
        ("handlers__words__replies", "from handlers.text import links\nfrom handlers.text.links import x", 0),
        ("handlers__words__replies", "from handlers import rules", 0),
        ("handlers__rules", "import handlers.words.replies", 1),
        ("bot__app", "from bot.web.pages import Pages", 0),
        ("bot__web__pages", "from bot import app", 1),
        ("bot__web__auth__sessions", "from bot.web.pages import Pages", 1),
        ("bot__web__pages", "from bot.web.auth import sessions", 0),
        ("runner__jobd__sandbox__cell", "from ..verbs.agent import x", 1),
        ("runner__jobd__verbs__agent", "from ..sandbox.cell import x\nfrom ..files import y", 0),
        ("runner__jobd__files", "from .verbs.agent import x", 1),
        ("runner__steps__steps", "from runner.jobd.verbs import agent", 0),
    ],
)
def test_an_import_of_a_package_above_is_found(name: str, text: str, complaints: int) -> None:
    known = ("handlers__text__links", "handlers__words__replies", "handlers__rules", "bot__app", "bot__web__pages")
    more = (
        "bot__web__auth__sessions",
        "runner__jobd__verbs__agent",
        "runner__jobd__sandbox__cell",
        "runner__jobd__files",
    )
    sources = made_up(**{**dict.fromkeys((*known, *more), ""), name: text})
    assert len(house.find_imports_between_packages(sources)) == complaints


def test_a_module_in_an_unknown_package_is_found() -> None:
    assert (
        len(house.find_strays(made_up(bot__misc__a="", bot__app="", bot__web__pages="", runner__jobd__files=""))) == 1
    )


def test_the_stand_in_is_for_the_demo_and_knows_nothing_of_ours() -> None:
    sources = made_up(
        github_standin__standin="import runner.model.job",
        bot__demo__story="from github_standin import StandIn",
        bot__app="import github_standin.standin",
    )
    found = [complaint.split()[0] for complaint in house.find_imports_of_the_standin(sources)]
    assert found == ["github_standin.standin:1", "bot.app:1"]


@pytest.mark.parametrize(
    ("floor", "text", "complaints"),
    [
        ("handlers", "import aiohttp.web", 1),
        ("handlers", "from gidgethub.abc import GitHubAPI", 1),
        ("handlers", "from gidgethub import routing\nfrom gidgethub.sansio import Event", 0),
        ("runner", "from gidgethub import routing", 1),
        ("runner", "import asyncssh", 0),
        ("bot", "import aiohttp, gidgethub.aiohttp", 0),
    ],
)
def test_libraries_stay_on_their_floor(floor: str, text: str, complaints: int) -> None:
    assert len(house.find_foreign_imports(made_up(**{f"{floor}__x": text}))) == complaints


@pytest.mark.parametrize(
    "sources",
    [
        made_up(runner__a="import runner.b", runner__b="from runner import c", runner__c="from .a import x"),
        made_up(runner__="from runner import a", runner__a="from runner import VERSION"),
    ],
)
def test_a_cycle_is_found(sources: Sequence[Source]) -> None:
    (complaint,) = house.find_cycles(sources)
    assert " <- runner.a" in complaint or "runner.a <- " in complaint


def test_a_cycle_that_only_a_type_checker_sees_is_none() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import runner.b"
    assert house.find_cycles(made_up(runner__a=text, runner__b="import runner.a")) == []


def test_a_package_that_gathers_its_modules_makes_no_cycle() -> None:
    assert house.find_cycles(made_up(handlers__="from handlers import labels", handlers__labels="import json")) == []


def test_an_import_inside_a_function_is_found() -> None:
    text = "class A:\n    async def f(self):\n        if 1:\n            import json"
    (complaint,) = house.find_imports_in_functions(made_up(bot__app=text))
    assert complaint.startswith("bot.app:4 imports inside f()")


def test_a_module_without_docstring_is_found() -> None:
    assert len(house.find_missing_docstrings(made_up(bot__a='"""Says it."""', bot__b="# says nothing"))) == 1


def test_a_vague_name_is_found() -> None:
    sources = made_up(bot__utils="", bot__github__="", runner__job_manager="", handlers__helpers__x="")
    complaints = [complaint.partition(":")[0] for complaint in house.find_vague_names(sources)]
    assert complaints == ["bot.utils", "runner.job_manager", "handlers.helpers.x"]


def test_two_classes_with_one_name_are_found() -> None:
    text = "class Usage: ..."
    sources = made_up(
        runner__model__usage=text, bot__spend=f"def f():\n    {text}", github_standin__x=text, handlers__x=""
    )
    (complaint,) = house.find_shared_class_names(sources)
    assert complaint.startswith("Usage is the name of 2 classes: runner.model.usage:1, bot.spend:2; ")


@pytest.mark.parametrize("text", ["unicodedata.normalize('NFKC', x)", "from unicodedata import normalize"])
def test_a_normalisation_of_a_whole_text_is_found(text: str) -> None:
    assert len(house.find_normalisations(made_up(handlers__text__x=text, runner__characters=text))) == 1


@pytest.mark.parametrize("text", ["ast.parse(x)", "import symtable", "from ast import literal_eval"])
def test_another_parser_of_python_is_found(text: str) -> None:
    assert len(house.find_parsers(made_up(handlers__text__x=text, runner__checks__python_source=text))) == 1


@pytest.mark.parametrize(
    "text", ["await asyncio.to_thread(read, x)", "asyncio.get_running_loop().run_in_executor(None, read, x)"]
)
def test_work_in_the_threads_of_lookups_is_found(text: str) -> None:
    assert len(house.find_shared_threads(made_up(bot__web__x=text, runner__db__x=text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import unittest.mock",
        "from unittest import mock",
        "from unittest.mock import patch",
        "import mock",
        "def test_x(monkeypatch):\n    monkeypatch.setattr(app, 'run', None)",
    ],
)
def test_a_mock_is_found(text: str) -> None:
    assert len(house.find_mocks(made_up(tests__test_x=text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import yaml",
        "from ..steps import end",
        "from runner.model.job import Job",
        "import tomllib",
        "match 1:\n    case 1: pass",
        "try: 1\nexcept* OSError: 2",
    ],
)
def test_what_an_old_python_cannot_run_is_found(text: str) -> None:
    old = house.find_what_a_machine_lacks(Source("runner.jobd.main", f"import os\n{text}"))
    assert len(old) == 1, old


def test_what_an_old_python_can_run_is_fine() -> None:
    text = "from __future__ import annotations\nimport json, subprocess\ndef f(x: int | None) -> None: ..."
    assert house.find_what_a_machine_lacks(Source("runner.jobd.main", text)) == []


async def on_one(event: Event) -> None: ...


async def on_another(event: Event) -> None: ...


def router_of(*routes: tuple[str, dict[str, str]]) -> Router:
    router = Router()
    for number, (event, detail) in enumerate(routes):
        router.add(on_another if number else on_one, event, **detail)
    return router


def test_one_callback_for_each_event_is_fine() -> None:
    labeled, created = ("issues", {"action": "labeled"}), ("issue_comment", {"action": "created"})
    assert house.find_shared_events(router_of(labeled, created, ("ping", {}))) == []


@pytest.mark.parametrize(
    ("first", "second", "event"),
    [
        (("issues", {"action": "labeled"}), ("issues", {"action": "labeled"}), "issues action=labeled"),
        (("issues", {"action": "labeled"}), ("issues", {}), "issues action=labeled"),
        (("ping", {}), ("ping", {}), "ping (any)"),
    ],
)
def test_two_callbacks_for_one_event_are_found(
    first: tuple[str, dict[str, str]], second: tuple[str, dict[str, str]], event: str
) -> None:
    (complaint,) = house.find_shared_events(router_of(first, second))
    assert complaint == f"{event} goes to on_another, on_one: leave one, and let it call the others"


def test_callbacks_that_look_at_different_keys_are_found() -> None:
    router = router_of(("issues", {"action": "labeled"}), ("issues", {"state": "open"}))
    assert len(house.find_shared_events(router)) == 2


# The document


def squeeze(text: str) -> str:
    return " ".join(text.split())


def test_the_document_has_each_package_in_its_own_words() -> None:
    manual = squeeze((ROOT / "ARCHITECTURE.md").read_text())
    packages = [package for folder in house.PACKAGES for package in house.list_packages(folder) if package != folder]
    assert len(packages) > 40
    for package in packages:
        path = package.replace(".", "/")
        text = ast.get_docstring(ast.parse((ROOT / path / "__init__.py").read_text()))
        assert text
        assert f"**`{path}`** {squeeze(text)}" in manual, package


def describe_kind(kind: JobKind) -> str:
    """A row of the document's table, without its last column."""
    row = KINDS[kind]
    steps = ", ".join(f"({step})" if step in row.may_skip else step for step in row.steps)
    thread = {True: "yes", False: "no", None: "as the job that it follows"}[row.has_thread]
    agent = "on conflicts" if JobState.RUNNING in row.may_skip else "yes" if row.has_agent else "no"
    return f"| {kind} | {steps} | {thread} | {agent} | {'yes' if JobState.COLLECTING in row.steps else 'no'} | "


def test_the_document_has_the_table_of_kinds() -> None:
    manual = (ROOT / "ARCHITECTURE.md").read_text()
    assert [kind for kind in JobKind if f"\n{describe_kind(kind)}" not in manual] == []


def test_the_document_names_files_that_are_there() -> None:
    named = re.findall(
        r"`((?:bot|handlers|runner|tests|github_standin|docs)/[\w/.]*\w)", (ROOT / "ARCHITECTURE.md").read_text()
    )
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_folder_has_more_modules_than_a_reader_can_keep_in_mind() -> None:
    counts = Counter(source.package for source in PRODUCT if not source.is_package)
    assert {package: count for package, count in counts.items() if count > 16} == {}
