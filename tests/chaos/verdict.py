"""What came of it, read from the logs of the outside alone: GitHub's and the machines'. Pure but for reading them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bot.demo.repository import NAME
from handlers.words.replies import render_pull_failed
from tests.chaos.arena import SLOTS, Arena

GIVEN_UP = render_pull_failed("why").partition("why")[0]
"""How the service's word begins that a pull request was given up."""

MARKER = re.compile(r"<!-- ptq:(\w+)=(\w+) -->")


@dataclass
class Story:
    """One issue, and when what happened in it, in seconds of the steady clock."""

    number: int
    wants_pull: bool
    labelled_at: float
    status_at: float | None = None
    report_at: float | None = None
    pull_at: float | None = None
    refusal: str = ""
    """Why its pull request was given up, in the service's words."""

    @property
    def is_over(self) -> bool:
        has_pull = self.pull_at is not None or bool(self.refusal)
        return self.report_at is not None and (has_pull or not self.wants_pull)

    @property
    def steps_done(self) -> int:
        """How far it has come."""
        return sum(at is not None for at in (self.status_at, self.report_at, self.pull_at))


@dataclass
class Progress:
    """Whether a run still moves. It may take as long as its machine needs; it is stuck when nothing comes of it."""

    still_s: float
    """For how long nothing may have come before it counts as stuck, in seconds."""
    most: int | None = None
    moved_at: float = 0.0

    def note(self, done: int, at: float) -> bool:
        """Take notice of how much is done, at a moment of a steady clock. Whether the run still moves."""
        if self.most is None or done > self.most:
            self.most, self.moved_at = done, at
        return at - self.moved_at < self.still_s


@dataclass
class Verdict:
    """Counts of what must never be, and how long things took."""

    lost: int = 0
    double_comments: int = 0
    double_pulls: int = 0
    missing_pulls: int = 0
    double_agents: int = 0
    overlapping_agents: int = 0
    fallen_replicas: int = 0
    failed_reports: int = 0
    refusals: list[str] = field(default_factory=list)
    """Why pull requests were given up."""
    left_folders: int = 0
    """Folders of jobs that their machines still have at the end."""
    complaints: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        counts = (self.lost, self.double_comments, self.double_pulls, self.missing_pulls, self.double_agents)
        faults = (self.overlapping_agents, self.failed_reports, self.fallen_replicas, self.left_folders)
        return not any((*counts, *faults, *self.complaints))

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("lost", str(self.lost)),
            ("double comments", str(self.double_comments)),
            ("double pull requests", str(self.double_pulls)),
            ("pull requests that never came", str(self.missing_pulls)),
            *(("a pull request was given up", refusal) for refusal in sorted(set(self.refusals))),
            ("agents started twice", str(self.double_agents)),
            ("overlapping agents", str(self.overlapping_agents)),
            ("reports of a failure", str(self.failed_reports)),
            ("folders of jobs that never went", str(self.left_folders)),
            ("replicas that fell by themselves", str(self.fallen_replicas)),
            ("requests that GitHub would not know", str(len(self.complaints))),
        ]


def count_done(arena: Arena, stories: Iterable[Story]) -> int:
    """How much has come of a run so far. It never gets less, and is bounded."""
    agents = len(arena.notes.read_text().splitlines()) if arena.notes.exists() else 0
    return agents + sum(story.steps_done for story in stories)


def list_folders(arena: Arena) -> list[Path]:
    """The folders of jobs that the machines have."""
    return [path for machine in arena.machines for path in (machine.workspace / "jobs").glob("*")]


def list_ours(arena: Arena, number: int) -> list[str]:
    comments = arena.github.issue(NAME, number).comments
    return [comment.body for comment in comments if comment.user.login == "ptq-bot[bot]"]


def judge(arena: Arena, stories: Sequence[Story]) -> Verdict:
    """Count what must not be."""
    verdict = Verdict(complaints=[*arena.github.complaints, *map(str, arena.github.unknown_calls)])
    verdict.refusals = [story.refusal for story in stories if story.refusal]
    for story in stories:
        bodies = list_ours(arena, story.number)
        markers = Counter(found[0] for body in bodies if (found := MARKER.match(body)))
        verdict.double_comments += sum(count - 1 for count in markers.values())
        kinds = Counter(found[1] for body in bodies if (found := MARKER.match(body)))
        verdict.lost += not (kinds["job"] and kinds["report"] and story.report_at)
        verdict.double_comments += max(0, kinds["job"] - 1) + max(0, kinds["report"] - 1)
        verdict.failed_reports += not any("fix staged" in body.lower() for body in bodies if "ptq:report=" in body)
    heads = Counter(pull.head for pull in arena.github.pulls(NAME))
    issues = Counter(head.rpartition("-")[0] for head in heads)
    verdict.double_pulls = sum(count - 1 for count in [*heads.values(), *issues.values()])
    wanted = sum(story.wants_pull for story in stories)
    verdict.missing_pulls = max(0, wanted - len(heads))
    lines = [json.loads(line) for line in arena.notes.read_text().splitlines()] if arena.notes.exists() else []
    starts = Counter(line["job"] for line in lines if line["what"] == "start")
    verdict.double_agents = sum(count - 1 for count in starts.values())
    verdict.overlapping_agents = count_overlaps(lines)
    verdict.left_folders = len(list_folders(arena))
    return verdict


def count_overlaps(lines: Iterable[Mapping[str, object]]) -> int:
    """How often an agent began on a machine that had as many at work as it has slots."""
    at_work: defaultdict[object, set[object]] = defaultdict(set)
    overlaps = 0
    for line in sorted(lines, key=lambda line: float(str(line["at"]))):
        jobs = at_work[line["machine"]]
        if line["what"] == "start":
            overlaps += len(jobs) >= SLOTS
            jobs.add(line["job"])
        else:
            jobs.discard(line["job"])
    return overlaps


def look(arena: Arena, story: Story) -> None:
    """Note what has come since the last look."""
    bodies = list_ours(arena, story.number)
    now = time.monotonic()
    if story.status_at is None and any("ptq:job=" in body for body in bodies):
        story.status_at = now
    if story.report_at is None and any("[report](http" in body for body in bodies):
        story.report_at = now
    story.refusal = next((body.splitlines()[-1] for body in bodies if GIVEN_UP in body), "")
    if story.pull_at is None and any("Draft pull request #" in body for body in bodies):
        story.pull_at = now


def find_percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; 0 where there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
