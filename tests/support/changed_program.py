"""The program of one machine with another limit, where its own would take a test long to reach."""

from __future__ import annotations

import shutil

from tests.support.jobd import Jobd


def set_constant(jobd: Jobd, module: str, name: str, old: str, new: str) -> None:
    """Change a constant of a module, such as `stages.stage`, in a copy of the program for this machine."""
    jobd.is_warm = False  # What has imported the program already has the old one.
    if jobd.program.is_symlink():
        shared = jobd.program.resolve()
        jobd.program.unlink()
        shutil.copytree(shared, jobd.program)
    file = jobd.program / "jobd" / f"{module.replace('.', '/')}.py"
    text = file.read_text()
    assert text.count(f"\n{name} = {old}\n") == 1, "the constant has another value now"
    file.write_text(text.replace(f"\n{name} = {old}\n", f"\n{name} = {new}\n"))
