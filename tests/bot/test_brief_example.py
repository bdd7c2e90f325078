"""`docs/briefs.md`: what an agent is told about a real issue, with the profile for PyTorch."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from bot.config.policy_tables import RepositoryTable
from handlers.jobs.brief import render_brief
from handlers.jobs.snapshot import Snapshot
from handlers.rules import PRESETS
from handlers.text.repros import ReproScript
from handlers.text.sanitize import fence
from tests.support.manuals import check_manual

SCRIPT = """\
import torch
from torch.optim.lr_scheduler import MultiStepLR

def make():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    return optimizer, MultiStepLR(optimizer, milestones=[2, 4], gamma=0.1)

optimizer, scheduler = make()
for _ in range(3):
    optimizer.step()
    scheduler.step()

_, restored = make()
restored.load_state_dict(scheduler.state_dict())
restored.step()
assert restored.get_last_lr()[0] < 0.011, restored.get_last_lr()
"""
BODY = f"""\
I save the state of a `MultiStepLR`, but not that of its optimizer, because that one is large.
After I load it, the scheduler knows its epoch, and that it is beyond the first milestones.
The learning rate is still the initial one: it only drops at milestones that come later.

```python
{SCRIPT}```

PyTorch 1.3.1, Linux, CPU.
"""
ISSUE = Snapshot(
    issue_number=29697,
    title="MultiStepLR does not return good lr after load_state_dict",
    author="reporter",
    body=BODY,
    labels=("module: optimizer", "triaged"),
    created_at=datetime(2019, 11, 13, 9, 0, tzinfo=UTC),
    frozen_at=datetime(2026, 11, 20, 9, 0, tzinfo=UTC),
    comments=(),
    repros=(ReproScript("the issue", "python", SCRIPT),),
    links=(),
)


def test_the_documents_show_the_brief_of_a_real_issue() -> None:
    rules = RepositoryTable.model_validate({"profile": "pytorch", "agent": "claude"}).as_rules("pytorch/pytorch", {})
    brief = render_brief(PRESETS["diagnose"], ISSUE, rules, "", "5eed5eed5eed5eed", skills=rules.skills)
    check_manual("briefs.md", "the templates and the profile pytorch", fence(brief, "text"))


def test_a_brief_says_what_the_operator_says_about_the_project_and_that_it_lifts_no_limit() -> None:
    rules = RepositoryTable(agent="claude").as_rules("pytorch/pytorch", {})
    plain = render_brief(PRESETS["fix"], ISSUE, rules, "", "5eed")
    told = render_brief(PRESETS["fix"], ISSUE, replace(rules, brief="### Tests\n\nRun `nox`.\n"), "", "5eed")
    (before, after) = told.split("### Tests\n\nRun `nox`.\n")
    assert before.endswith("It cannot lift the\nlimits below.\n\n")
    assert "## This project" not in plain
    assert "\n## Limits\n" in after
