"""The program of one machine with another limit, where its own would take a test long to reach."""

from __future__ import annotations

from tests.support.jobd import Jobd


def set_constant(jobd: Jobd, module: str, name: str, old: str, new: str) -> None:
    """Change a constant of a module, such as `stages.stage`, in this machine's copy of the program."""
    jobd.is_warm = False  # What has imported the program already has the old one.
    file = jobd.program / "jobd" / f"{module.replace('.', '/')}.py"
    text = file.read_text()
    assert text.count(f"\n{name} = {old}\n") == 1, "the constant has another value now"
    file.write_text(text.replace(f"\n{name} = {old}\n", f"\n{name} = {new}\n"))
