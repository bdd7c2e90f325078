"""A real issue of PyTorch, from its label to a draft pull request, by `pytorch-python` (`make test-pytorch`).

The issue is pytorch/pytorch#29697, retold in our words (`tests/bot/test_brief_example.py`). The repository holds the
Python files of PyTorch 2.13, and the compiled part comes from the wheel, as in the profile. The agent is a script: it
shows what the machine, the checks and the pull request do with such a change, not that PyTorch wants this change.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from bot.config.policy_tables import read_profiles
from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import NAME
from tests.bot.test_brief_example import BODY, ISSUE
from tests.support.world import World, open_world

pytestmark = [pytest.mark.pytorch, pytest.mark.timeout(1800)]

PATIENCE_S = 1500.0
"""A base with PyTorch takes a minute or two, and each check imports it a good many times."""

WHEELS = Path(__file__).parents[2] / ".cache" / "pytorch"
TEST = Path(__file__).with_name("issue_29697") / "test_restored_schedule.py.txt"
PACKAGES = ("functorch", "torch", "torchgen")
GENERATED = ("torch/version.py", "torch/_C/", "torch/testing/_internal/generated/")
IGNORED = "__pycache__/\n*.pyi\n*.so*\n/torch/bin/\n/torch/include/\n/torch/lib/\n/torch/share/\n/torch/version.py\n"

SOURCE, NEXT_CLASS = "torch/optim/lr_scheduler.py", "\n\nclass ConstantLR("
RESTORE = '''
    def load_state_dict(self, state_dict):
        """Load the state, and give the optimizer the learning rates that belong to it."""
        super().load_state_dict(state_dict)
        for group, lr in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            _update_param_group_val(group, "lr", lr)
'''
NOTE = (
    "A schedule multiplies the rate that it finds in the optimizer, and a fresh optimizer has the initial one. "
    "Loading the schedule's state now also sets the rates that the schedule had last, so the next step continues there."
)
AGENT = f"""
import os, pathlib, subprocess, sys
import torch
output = pathlib.Path(os.environ["PTQ_OUTPUT_DIR"])
brief = pathlib.Path(os.environ["PTQ_PROMPT_FILE"]).read_text()
print("torch", torch.__version__, "in the worktree:", torch.__file__.startswith(os.getcwd()), flush=True)
repro = {BODY!r}.partition("```python\\n")[2].partition("```")[0]
(output / "repro.py").write_text(repro)
before = subprocess.run(["python", str(output / "repro.py")], stderr=subprocess.PIPE, text=True)
assert "AssertionError: [0.1]" in before.stderr.replace("[0.10000000000000000", "[0.1"), before.stderr
source = pathlib.Path({SOURCE!r})
text = source.read_text()
assert text.count({NEXT_CLASS!r}) == 1
source.write_text(text.replace({NEXT_CLASS!r}, {RESTORE + NEXT_CLASS!r}))
subprocess.run(["python", str(output / "repro.py")], check=True)
test = pathlib.Path("test/optim/test_restored_schedule.py")
test.parent.mkdir(parents=True, exist_ok=True)
test.write_text({TEST.read_text()!r})
done = subprocess.run(["python", "-m", "pytest", "-q", str(test)])
assert done.returncode == 0
(output / "report.md").write_text(
    "fix staged\\n\\n## Summary\\nA restored schedule continues with the rate that it had.\\n\\n"
    "## Root cause\\n`get_lr` multiplies the rate in the optimizer, which is the initial one after a restart.\\n"
)
(output / "worklog.md").write_text("reproduced, changed, tested\\n")
"""


def find_wheel() -> Path:
    """The wheel that `make test-pytorch` has fetched."""
    wheels = sorted(WHEELS.glob("torch-*.whl"))
    assert wheels, f"no wheel of torch in {WHEELS}: run `make test-pytorch`"
    return wheels[-1]


def list_sources(wheel: Path) -> dict[str, str]:
    """What of the wheel is in PyTorch's repository, too: its Python files, without those that its build generates."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") and name.split("/")[0] in PACKAGES]
        return {name: archive.read(name).decode() for name in names if not name.startswith(GENERATED)}


def describe_repository(world: World, wheel: Path) -> str:
    """The repository's table: the shipped profile with this wheel and this Python.

    PyTorch's linter is left out, because its files are not in this repository.
    """
    profile = read_profiles()["pytorch-python"]
    pip, *others = profile["setup"]
    assert "--index-url https://download.pytorch.org/whl/nightly/cpu torch" in pip
    others = [line for line in others if "spin quick" not in line and "--group dev" not in line]
    version = wheel.name.split("-")[1]
    own = f"python -m pip install --quiet --find-links {wheel.parent} torch=={version}"
    quote = json.dumps
    return f"""\
[repos."{NAME}"]
profile = "pytorch-python"
clone_url = {quote(world.playground.git_dir.resolve().as_uri())}
agent = "script"
labels = {{ "{LABEL}" = "fix" }}
create_venv = [{quote(sys.executable)}, "-m", "venv"]
setup = {quote([own, *others])}
update = {quote(profile["update"][:1])}
lint = []
verify = {{ runs = 2 }}
"""


async def test_a_real_issue_of_pytorch_becomes_a_verified_draft_pull_request(tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / find_wheel().name  # Jobs see this folder, and perhaps not the other one.
    wheel.parent.mkdir()
    shutil.copy(find_wheel(), wheel)
    async with open_world(tmp_path, agent=AGENT, on_real_machine=True) as world:
        world.patience_s = PATIENCE_S
        world.commit({".gitignore": IGNORED, **list_sources(wheel)})
        world.git("branch", "viable/strict", "main")
        await world.playground.stop_service()
        config = world.playground.config
        tables = config.read_text().partition(f'[repos."{NAME}"]')[0]
        assert f'command = ["{sys.executable}",' in tables
        tables = tables.replace(f'command = ["{sys.executable}",', 'command = ["python",')  # The agent imports torch.
        config.write_text(tables + describe_repository(world, wheel))
        await world.playground.start_service()
        world.number = await world.github.open_issue(NAME, ISSUE.title, BODY, STRANGER)
        await world.label()
        report = await world.wait_for_report()
        failed = "before: fails 2/2 (`AssertionError: [0.1"
        for name in ("the issue's repro", "the agent's repro"):
            line = next(line for line in report.splitlines() if f"**{name}**" in line)
            assert line.startswith("- ✅"), line
            assert failed in line
            assert "after: passes 2/2" in line
        assert "- ✅ **1 regression test** in `test/optim/test_restored_schedule.py`" in report
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}", by=MAINTAINER)
        pull = await world.wait_for_pull()
        assert pull.draft
        changed = world.git("diff", "--name-only", f"{pull.head_sha}~1", pull.head_sha).split()
        assert changed == ["test/optim/test_restored_schedule.py", SOURCE]
