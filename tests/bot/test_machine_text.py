"""The text of `ptq.toml` with a machine more or less: every byte of what else stands there stays."""

from __future__ import annotations

import tomllib

import pytest

from bot.operations.machine_text import NotEdited, add_table, remove_table

FILE = """# Ours
[server]
port = 8080

[[machines]]   # the old one
name = "a"
# only at night
slots = 2

# The fast one:
[[machines]]
name = "b"
labels = ["gpu",
  "h100",
]
# below it

[repos."octo/widgets"] # [[machines]]
agent = '''
[[notes]]
'''
"""

WITHOUT_A = FILE.replace(
    """[[machines]]   # the old one
name = "a"
# only at night
slots = 2

""",
    "",
)
WITHOUT_B = FILE.replace(
    """[[machines]]
name = "b"
labels = ["gpu",
  "h100",
]
""",
    "",
)
TABLE = '[[machines]]\n# why\nname = "c"\nslots = 3\nlabels = ["gpu", "ünï \\" \\\\ \\u007f"]\n'
VALUES: dict[str, str | int | list[str]] = {"name": "c", "slots": 3, "labels": ["gpu", 'ünï " \\ \x7f']}


def test_a_machine_is_added_at_the_end_and_nothing_else_changes() -> None:
    assert add_table(FILE, VALUES, "why") == f"{FILE}\n{TABLE}"
    assert add_table(FILE.rstrip("\n"), VALUES, "why") == f"{FILE.rstrip()}\n\n{TABLE}"
    assert add_table(FILE.replace("\n", "\r\n"), VALUES, "why") == f"{FILE}\n{TABLE}".replace("\n", "\r\n")
    assert tomllib.loads(add_table("", VALUES, "why")) == {"machines": [VALUES]}


def test_a_machine_is_taken_out_with_its_own_comments_alone() -> None:
    assert remove_table(FILE, "a") == WITHOUT_A
    assert remove_table(FILE, "b") == WITHOUT_B
    crlf = FILE.replace("\n", "\r\n")
    assert remove_table(crlf, "b") == WITHOUT_B.replace("\n", "\r\n")
    assert remove_table(remove_table(FILE, "b"), "a") == WITHOUT_A.replace(FILE, "").replace(
        '[[machines]]\nname = "b"\nlabels = ["gpu",\n  "h100",\n]\n', ""
    )


def test_what_was_added_is_taken_out_without_a_trace() -> None:
    for text in (FILE, FILE.replace("\n", "\r\n")):
        assert remove_table(add_table(text, VALUES, "why"), "c").rstrip() == text.rstrip()


@pytest.mark.parametrize(
    "text",
    [
        'machines = [{name = "a"}, {name = "b"}]\n',
        '[["machines"]]\nname = "a"\n',
        'note = """\n[[machines]]\n"""\n[[machines]]\nname = "a"\n',
        '[[machines]]\nname = "a"\nnote = """\n[x]\n"""\n',
        "no toml",
    ],
)
def test_what_only_a_person_can_edit_is_left_to_one(text: str) -> None:
    with pytest.raises(NotEdited):
        remove_table(text, "a")


def test_to_a_list_in_one_line_nothing_is_added() -> None:
    with pytest.raises(NotEdited, match="add it by hand"):
        add_table('machines = [{name = "a"}]\n', VALUES, "why")
