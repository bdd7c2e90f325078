"""The text of `ptq.toml` with a machine more or less: every byte of what else stands there stays."""

from __future__ import annotations

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
WITH_C = FILE.replace("]\n# below it\n", f"]\n\n{TABLE}# below it\n")
VALUES: dict[str, str | int | list[str]] = {"name": "c", "slots": 3, "labels": ["gpu", 'ünï " \\ \x7f']}


def test_a_machine_is_added_behind_the_last_one_and_nothing_else_changes() -> None:
    assert add_table(FILE, VALUES, "why") == WITH_C
    assert add_table(FILE.replace("\n", "\r\n"), VALUES, "why") == WITH_C.replace("\n", "\r\n")
    for short in ('[[machines]]\nname = "a"\n', '[[machines]]\nname = "a"'):
        assert add_table(short, VALUES, "why") == f'[[machines]]\nname = "a"\n\n{TABLE}'


def test_the_comment_above_the_next_table_stays_above_it() -> None:
    text = '[[machines]]\nname = "a"\n\n# The repositories\n[repos.x]\n'
    added = add_table(text, VALUES, "why")
    assert added == f'[[machines]]\nname = "a"\n\n{TABLE}\n# The repositories\n[repos.x]\n'
    assert remove_table(added, "a") == f"{TABLE}\n# The repositories\n[repos.x]\n"


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
        assert remove_table(add_table(text, VALUES, "why"), "c") == text


@pytest.mark.parametrize(
    "text",
    [
        'machines = [{name = "a"}, {name = "b"}]\n',
        '[[machines]]\nname = "b"\n',
        '[[machines]]\nname = "a"\n[other]\nname = "a"\n',
        "no toml",
    ],
)
def test_what_only_a_person_can_edit_is_left_to_one(text: str) -> None:
    with pytest.raises(NotEdited):
        remove_table(text, "a")


def test_a_text_that_looks_like_a_table_is_none() -> None:
    text = '[[machines]]\nname = "a"\nnote = """\n[[machines]]\n"""\n\n[["machines"]] # [[x]]\nname = "b"\n'
    assert remove_table(text, "a") == '[["machines"]] # [[x]]\nname = "b"\n'


def test_to_a_list_in_one_line_nothing_is_added() -> None:
    with pytest.raises(NotEdited, match="add it by hand"):
        add_table('machines = [{name = "a"}]\n', VALUES, "why")
