"""`make gpu`: run a job on this machine's NVIDIA GPU, from the label to the report, and say what was seen.

The machine needs an NVIDIA GPU with its driver, and a `python3` on PATH that has PyTorch. Nothing else of it is used,
and no network. The exit status is 1 if anything is not as it should be.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bot.demo.playground import LABEL, MAINTAINER, STRANGER, Playground
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from runner.model.inventory import Inventory, describe_gpus
from runner.model.job import Job
from runner.rows import job_rows
from runner.rows.machine_states import fetch_sightings
from tests.support.jobd import Jobd, make_repository

PATIENCE_S = 180.0

FIND_TORCH = "import torch; print(torch.__path__[0].rpartition('/')[0], torch.version.cuda, torch.__version__)"

REPRO = """\
import torch
from widgets import chunked
items = torch.arange(3, device="cuda")
assert sum(int(part.sum()) for part in chunked(items, 2)) == 3, "the last chunk never came to the GPU"
"""

AGENT = f"""\
import os, pathlib, subprocess
output = pathlib.Path(os.environ["PTQ_OUTPUT_DIR"])
(output / "report.md").write_text("fix staged\\n\\n## Summary\\nThe last chunk was lost.\\n")
(output / "worklog.md").write_text("looked\\n")
(output / "repro.py").write_text({REPRO!r})
def look(name, code):
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True)
    print(f"{{name}}: {{done.stdout.strip()}}{{done.stderr.strip()[-300:]}}", flush=True)
look("devices", "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name(0))")
look("product", "import torch; a = torch.ones(512, 512, device='cuda'); print(int((a @ a).sum()))")
print("visible:", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
print("brief:", *[line for line in open(os.environ["PTQ_PROMPT_FILE"]) if line.startswith("- GPU: ")], flush=True)
path = pathlib.Path("widgets/chunks.py")
path.write_text(path.read_text().replace(" - size + 1", ""))
"""

OTHER = [{"vendor": "nvidia", "id": "GPU-00000000-0000-0000-0000-000000000000", "files": ["nvidia97"]}]
"""The GPU of a slot that is not this machine's."""


@dataclass
class Findings:
    """What was looked at, and whether it was as it should be."""

    failed: list[str] = field(default_factory=list)

    def expect(self, what: str, *, holds: bool, seen: object) -> None:
        print(f"{'ok' if holds else 'NOT OK':<7} {what}: {seen}", flush=True)
        if not holds:
            self.failed.append(what)


def ask(*words: str) -> str:
    """What a program prints. Raises `CalledProcessError`."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


async def run_job(folder: Path, packages: str) -> tuple[Job, Inventory, str, str]:
    """One job on an issue whose bug shows on a GPU. Returns it, its machine's inventory, its log and its report."""
    script = folder / "agent.py"
    script.write_text(AGENT)
    path_file = "import sysconfig; print(sysconfig.get_path('purelib') + '/torch.pth')"
    setup = f'echo {packages} > "$(python -c "{path_file}")"'
    toml = f"setup = {json.dumps([setup])}\n"
    async with Playground(
        folder, agent=(sys.executable, str(script)), repository_toml=toml, verify_runs=2
    ) as playground:
        github = playground.github
        number = await github.open_issue(NAME, ISSUE_TITLE, f"{ISSUE_BODY}\n\n```python\n{REPRO}```\n", STRANGER)
        await github.label_issue(NAME, number, LABEL, MAINTAINER)
        deadline = time.monotonic() + PATIENCE_S
        report = None
        while report is None and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            bodies = [comment.body for comment in github.issue(NAME, number).comments]
            report = next((body for body in bodies if "<!-- ptq:report=" in body), None)
        async with playground.service.context.db.read() as connection:
            (job,) = await job_rows.fetch_recent_jobs(connection, 1)
            inventory = (await fetch_sightings(connection))["gpu-1"].inventory
            log = await job_rows.fetch_log(connection, job.id, "agent") or b""
            preparation = await job_rows.fetch_log(connection, job.id, "prepare") or b""
    return job, inventory, (preparation + log).decode(), report or "no report"


def refuse_other(folder: Path) -> str:
    """What a job whose slot has another GPU sees of this one."""
    machine = Jobd(folder, make_repository(folder / "origin"))
    prepared = machine.prepare(gpus=OTHER)
    assert prepared["state"] == "done", prepared["message"]
    torch = f"{shutil.which('python3')} -c 'import torch; print(torch.cuda.is_available())'"
    look = f"(: < /dev/nvidia0) 2>/dev/null && echo opened || echo refused; unset CUDA_VISIBLE_DEVICES; {torch} 2>&1"
    text: str = machine.agent(look)["log"].decode()
    return text


def main() -> int:
    """Run both jobs. Returns the exit status."""
    packages, cuda, torch = ask(shutil.which("python3") or sys.executable, "-c", FIND_TORCH).split()
    listed = [line.partition("UUID: ")[2].rstrip(")") for line in ask("nvidia-smi", "-L").splitlines()]
    findings = Findings()
    with tempfile.TemporaryDirectory(dir="/srv" if Path("/srv").is_dir() else None) as name:
        folder = Path(name)
        (folder / "story").mkdir()
        job, inventory, log, report = asyncio.run(run_job(folder / "story", packages))
        (folder / "other").mkdir()
        other = refuse_other(folder / "other")
    print(log, report, sep="\n---\n")
    gpus, facts, gpu = inventory.gpus, dict(job.facts), inventory.gpus[0] if inventory.gpus else None
    uuids = [gpu.id for gpu in gpus]
    findings.expect("inventory", holds=bool(gpu) and uuids == listed, seen=describe_gpus(gpus))
    findings.expect("the job is sealed", holds=inventory.sealed, seen=inventory.sealed)
    name = gpu.name if gpu else ""
    findings.expect("devices in the cell", holds=f"devices: 1 {name}\n" in log, seen=name)
    findings.expect("a product on it", holds=f"product: {512**3}\n" in log, seen=512**3)
    findings.expect("its UUID is in CUDA_VISIBLE_DEVICES", holds=f"visible: {','.join(uuids)}\n" in log, seen=uuids)
    findings.expect("the brief names it", holds=f"brief: - GPU: 1 × {name}" in log, seen=facts.get("GPU"))
    found = facts.get("torch"), facts.get("CUDA of torch")
    findings.expect("PyTorch and its CUDA are facts", holds=found == (torch, cuda), seen=facts)
    holds = "the issue's repro**" in report and report.count("after: passes 2/2") >= 2
    findings.expect("the repro was checked on it, before and after", holds=holds, seen=job.state)
    findings.expect("the report names it", holds=f"in the environment: GPU `1 × {name}" in report, seen=name)
    findings.expect("the GPU of another slot is refused", holds="refused\nFalse" in other, seen=other.split("\n"))
    print(f"{len(findings.failed)} of 10 not as they should be" if findings.failed else "all as it should be")
    return bool(findings.failed)


if __name__ == "__main__":
    sys.exit(main())
