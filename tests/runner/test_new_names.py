"""What a script asks for that only a change has; and what many a script asks for besides."""

from __future__ import annotations

import pytest

from runner.checks.new_names import MAX_SCRIPT, find_new_names
from runner.model.job import FileChange

CHANGED = b"""\
class Cutter:
    def __init__(self):
        self.fixed = True

    def __len__(self):
        return 1


def chunked(items, size, _fixed=None):
    result = torch._dynamo.run(items)
    raise ValueError("a better message")


flatten: object = chunked
"""
PATCH = """\
diff --git a/widgets/_tail.py b/widgets/_tail.py
new file mode 100644
--- /dev/null
+++ b/widgets/_tail.py
@@ -0,0 +1 @@
+x = 1
diff --git a/widgets/chunks.py b/widgets/chunks.py
--- a/widgets/chunks.py
+++ b/widgets/chunks.py
@@ -1,3 +1,14 @@
+class Cutter:
+    def __init__(self):
+        self.fixed = True
+
+    def __len__(self):
+        return 1
+
+
-def chunked(items, size):
-    _gone = run(items)
+def chunked(items, size, _fixed=None):
+    result = torch._dynamo.run(items)
+    raise ValueError("a better message")
+
+
-old = 1
+flatten: object = chunked
"""
CHANGES = [
    FileChange("widgets/_tail.py", "100644", b"x = 1\n", None),
    FileChange("widgets/chunks.py", "100644", CHANGED, "100644"),
]


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("from widgets.chunks import flatten", ["flatten"]),
        ("import widgets\nwidgets.chunks.Cutter().fixed", ["Cutter", "fixed"]),
        ("from widgets import *\nflatten([])", ["flatten"]),
        ("assert hasattr(widgets.chunks, 'flatten')", ["flatten"]),
        ("chunked([1], 2, _fixed=1)", ["_fixed"]),
        ("assert '_fixed' in inspect.signature(chunked).parameters", ["_fixed"]),
        ("assert os.path.exists('widgets/_tail.py')", ["_tail"]),
        ("import widgets._tail as tail", ["_tail"]),
    ],
)
def test_a_script_asks_for_what_only_the_change_has(script: str, names: list[str]) -> None:
    assert find_new_names(script, CHANGES, PATCH, "It drops items.") == names


@pytest.mark.parametrize(
    "script",
    [
        "flatten = list(chunked([1], 2))\nassert flatten == [[1]]",
        "assert chunked([1], 2), 'flatten drops items'",
        "assert 'a better message' in str(error)",
        "torch._dynamo.reset()",
        "future.result()",
        "items.__len__()",
        "assert _gone",
        "def broken(",
        "",
    ],
)
def test_a_script_that_uses_what_others_have_is_left_alone(script: str) -> None:
    assert find_new_names(script, CHANGES, PATCH, "It drops items.") == []


def test_what_the_issue_names_may_be_asked_for() -> None:
    script = "from widgets.chunks import flatten\nassert flatten([[1]]) == [1]"
    assert find_new_names(script, CHANGES, PATCH, "Please add `widgets.chunks.flatten()`.") == []


def test_a_name_that_a_changed_file_had_before_is_no_new_one() -> None:
    before = CHANGES[1].content or b""
    old = FileChange("widgets/chunks.py", "100644", before + b"# flatten comes later\n", "100644")
    assert find_new_names("chunks.flatten", [CHANGES[0], old], PATCH, "") == []


def test_a_patch_of_something_else_accuses_nobody() -> None:
    assert find_new_names("chunks.flatten", [], PATCH, "") == []
    assert find_new_names("chunks.flatten", CHANGES, "no patch", "") == []


@pytest.mark.parametrize("source", ["a<b;" * (MAX_SCRIPT // 4) + "\n", "no Python = at all\n"])
def test_every_word_counts_of_a_script_that_is_not_parsed(source: str) -> None:
    assert find_new_names(f"{source}# Cutter\n", CHANGES, PATCH, "") == ["Cutter"]
    assert find_new_names("x = 1  # Cutter\n", CHANGES, PATCH, "") == []
