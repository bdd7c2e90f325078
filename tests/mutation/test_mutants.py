"""The faults that `make mutation` plants: what each operator does, and how a recorded fault is found again."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.faults import choose, divide, find_all, find_mutants, get_part, locate, read_record, write_record

ROOT = Path(__file__).parents[2]


def mutate(body: str, path: str = "bot/a.py") -> set[tuple[str, str]]:
    """The operators that fit, each with the source that it makes."""
    return {(mutant.operator, mutant.apply(body)) for mutant in find_mutants(path, body)}


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("negate condition", "if ready: x()", "if not (ready): x()"),
        ("negate condition", "y = [a for a in b if a]", "y = [a for a in b if not (a)]"),
        ("swap comparison", "y = (a) < b", "y = (a) <= b"),
        ("swap comparison", "y = é not  in b == c", "y = é not  in b != c"),
        ("swap comparison", "y = é not  in b", "y = é in b"),
        ("swap and/or", "y = a and b and c", "y = a or b and c"),
        ("add one", "y = rows[9:]", "y = rows[10:]"),
        ("return None", "return [*a,\n  b]", "return None"),
        ("delete call", "close(\n  a)", "pass"),
        ("delete await", "await close()", "pass"),
        ("delete assignment", "y += 1", "pass"),
        ("delete assignment", "y[1] = 2", "pass"),
        ("never catch", "try: a()\n except (B, C) as e: d(e)", "try: a()\n except () as e: d(e)"),
        ("rename key", "y = a['state']", 'y = a["state_"]'),
        ("rename key", "y = a == 'done'", 'y = a == "done_"'),
        ("rename key", "y = a.get('state', 'none')", "y = a.get(\"state_\", 'none')"),
    ],
)
def test_an_operator_changes_one_thing(operator: str, before: str, after: str) -> None:
    assert (operator, f"async def f():\n {after}\n") in mutate(f"async def f():\n {before}\n")


def test_an_answer_becomes_fixed() -> None:
    made = mutate("def f() -> bool:\n    return g()\n")
    assert {operator for operator, _ in made} == {"return True", "return False"}
    assert not mutate("def f() -> bool:\n    return None\n")


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Says it."""\n    log.info("done", count=3 if a else 4)\n',
        "async def f():\n    await log.awarning(str(1))\n",
        "def f(a: Literal['one'], b: dict[int, 3]) -> Literal['two']: ...\n",
        "def f():\n    a: Literal['one']\n    assert a == 1, 'one'\n",
        "class A:\n    def __repr__(self):\n        return 'A' if self.b else None\n",
        "if TYPE_CHECKING:\n    import a\n",
        "if __name__ == '__main__':\n    main()\n",
        "def f():\n    try: pass\n    except A: raise\n    while True: pass\n",
        "LIMIT = 3\nSIZE = 5_000\nNAME = cast('A', b)\n",
    ],
)
def test_what_no_test_could_notice_stays(source: str) -> None:
    assert mutate(source) == set()


def test_the_database_loses_rules() -> None:
    table = (
        'jobs = Table("jobs", Column("id", Text, nullable=False, unique=True), Index("by_id", "id", sqlite_where=A))\n'
    )
    made = mutate(f'{table}Index("one", jobs.c.id, postgresql_where=A)\n', "runner/db/schema.py")
    assert {operator for operator, _ in made} == {
        *("drop nullable", "drop unique", "drop constraint", "drop condition of index", "delete call")
    }


def test_a_template_loses_what_it_decides() -> None:
    page = "{# if a #}\n<p>{{ a | upper }}</p>\n{% if a %}b{% endif %}\n"
    assert mutate(page, "bot/page.html") == {
        ("drop condition", page.replace("if a %", "if true %")),
        ("drop filter", page.replace(" | upper", "")),
        ("show unescaped", page.replace("{{ a | upper }}", "{{ (a | upper) | safe }}")),
        ("delete line", page.replace("<p>{{ a | upper }}</p>\n", "")),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["handlers/words/replies.py", "runner/db/schema.py", "runner/jobd/main.py", "bot/cli/main.py"]
)
def test_every_mutant_is_python(path: str) -> None:
    source = (ROOT / path).read_text()
    mutants = find_mutants(path, source)
    assert len(mutants) > 5
    for mutant in mutants[::5]:
        assert ast.unparse(ast.parse(mutant.apply(source))) != ast.unparse(ast.parse(source)), mutant


FUNCTIONS = "".join(
    f"def f{number}(a):\n    if a:\n        g{number}()\n    return a < {number}\n\n" for number in range(9)
)
TREE = {"handlers/a.py": FUNCTIONS, "bot/b.py": FUNCTIONS.replace("def f", "def h").replace("g", "k")}


def test_a_choice_depends_on_the_seed_and_not_on_the_order_of_files() -> None:
    chosen = choose(find_all(TREE), 1, 20)
    assert chosen == choose(find_all(dict(reversed(TREE.items()))), 1, 20) != choose(find_all(TREE), 2, 20)
    assert len({fault.function for fault in chosen}) == len(chosen) == 11


def test_a_choice_outlives_a_move() -> None:
    moved = {path.replace("handlers/", "bot/handlers/"): f"import x\n\n{source}" for path, source in TREE.items()}
    before, after = choose(find_all(TREE), 1, 20), choose(find_all(moved), 1, 20)
    assert [fault.key for fault in before] == [fault.key for fault in after]
    for fault in before:
        place = locate(fault, find_all(moved))
        assert place is not None
        assert (place[1].function, place[1].operator, place[1].line) == fault.key[:3]


def test_what_is_no_longer_there_or_is_there_twice_is_gone() -> None:
    fault = choose(find_all(TREE), 1, 20)[0]
    rest = find_all({path: source for path, source in TREE.items() if path != fault.path})
    assert locate(fault, rest) is None
    source = TREE[fault.path]
    assert locate(fault, find_all({"bot/x.py": source, "bot/y.py": source})) is None
    place = locate(fault, find_all({"bot/x.py": source, "bot/handlers/a.py": source}))
    assert place is not None
    assert place[0] == "bot/handlers/a.py"


def test_every_part_has_its_share() -> None:
    assert divide(40) == {"handlers": 12, "bot": 10, "runner": 8, "jobd": 6, "sql": 2, "templates": 2}
    assert sum(divide(7).values()) == 7
    paths = (
        "runner/jobd/a.py",
        "runner/db/schema.py",
        "bot/web/dashboard/a.py",
        "bot/web/templates/a.html",
        "prompts/a.j2",
    )
    assert [get_part(path) for path in paths] == ["jobd", "sql", "bot", "templates", "templates"]


def test_a_record_says_what_was_chosen(tmp_path: Path) -> None:
    faults = choose(find_all(TREE), 1, 20)
    write_record(1, faults, tmp_path / "faults.toml")
    assert read_record(tmp_path / "faults.toml") == faults
