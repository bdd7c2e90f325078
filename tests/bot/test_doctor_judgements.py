"""The doctor's judgements about what a test cannot break on purpose: clocks, and GitHub's answers."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from bot.config.manifest import load_manifest
from bot.config.policy_tables import DashboardTable
from bot.config.settings import load_settings
from bot.doctor.cap_checks import check_caps, judge_caps, judge_unknown_cost
from bot.doctor.delivery_checks import Received, judge_deliveries
from bot.doctor.file_checks import check_files, judge_file
from bot.doctor.findings import Cause, DoctorVerdict, Finding, Part, has_failed, hide_consequences, render_findings
from bot.doctor.github_checks import (
    judge_hook,
    judge_installation,
    judge_labels,
    judge_left,
    judge_skew,
    runs_our_branches,
)
from bot.doctor.host_checks import check_service, judge_key, judge_operators
from bot.doctor.machine_checks import find_skew_s, judge_room, judge_sandbox
from bot.github.inspection import DeliveryFacts, HookFacts, InstallationFacts
from bot.github.limits import Left, parse_left
from runner.agents import AgentSpec
from runner.model.caps import DEFAULT_CAPS, Caps, Scope
from runner.model.inventory import Inventory
from runner.model.machines import Gpu, Machine
from runner.transport.jobd_client import Capabilities
from tests.bot.test_cli import configure

UNSEALED = Capabilities(False, "not sealed: no user namespaces", "copy", [])
PART = Part("part")
URL = "https://ptq.example/webhook"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
FAILED, WARNING, OK = DoctorVerdict.FAILED, DoctorVerdict.WARNING, DoctorVerdict.OK


@pytest.mark.parametrize(
    ("skew_s", "verdict", "words"),
    [
        (0.4, OK, "in sync"),
        (-29.0, OK, "in sync"),
        (31.0, FAILED, "31 s ahead of"),
        (-4000.0, FAILED, "4,000 s behind"),
    ],
)
def test_a_clock_that_is_far_off_is_named(skew_s: float, verdict: DoctorVerdict, words: str) -> None:
    found = judge_skew(PART, "GitHub", "this host", skew_s)
    assert (found.verdict, words in found.words) == (verdict, True)


def test_a_clock_that_was_read_between_two_moments_of_ours_may_be_right() -> None:
    assert find_skew_s(100.0, 104.0, 102.0) == 0.0
    assert find_skew_s(100.0, 104.0, 90.0) == 10.0
    assert find_skew_s(100.0, 104.0, 110.0) == -6.0


@pytest.mark.parametrize(
    ("hook", "verdict", "words"),
    [
        (HookFacts(URL, "json", insecure=False, has_secret=True), OK, URL),
        (HookFacts(f"{URL}/", "json", insecure=False, has_secret=True), OK, URL),
        (HookFacts(URL, "form", insecure=False, has_secret=True), FAILED, "forms"),
        (HookFacts(URL, "json", insecure=False, has_secret=False), FAILED, "no secret"),
        (HookFacts(URL, "json", insecure=True, has_secret=True), WARNING, "certificate"),
    ],
)
def test_how_the_webhook_is_set_up_is_judged(hook: HookFacts, verdict: DoctorVerdict, words: str) -> None:
    (found,) = judge_hook(hook, URL)
    assert (found.verdict, words in found.words) == (verdict, True)


def test_a_suspended_or_old_installation_is_named() -> None:
    manifest = load_manifest()
    granted = dict(manifest.permissions)
    assert judge_installation(PART, InstallationFacts(granted, suspended=False), manifest) is None
    suspended = judge_installation(PART, InstallationFacts(granted, suspended=True), manifest)
    assert suspended
    assert "suspended" in suspended.words
    old = judge_installation(PART, InstallationFacts({**granted, "contents": "read"}, suspended=False), manifest)
    assert old
    assert "contents: write" in old.words
    assert "accept" in old.fix


def sent(guid: str, minutes_ago: float, status_code: int = 202, event: str = "issues") -> DeliveryFacts:
    status = "OK" if status_code else "failed to connect to host"
    return DeliveryFacts(guid, event, "labeled", AT - timedelta(minutes=minutes_ago), status_code, status)


def judge(*newest_first: DeliveryFacts, received: Received | None = None, is_relayed: bool = False) -> Finding:
    return judge_deliveries(PART, newest_first, received, AT, is_relayed=is_relayed)


def receive(**minutes_ago: float) -> Received:
    at = {guid: AT - timedelta(minutes=ago) for guid, ago in minutes_ago.items()}
    return Received(AT - timedelta(days=3), at)


def test_what_was_lost_before_the_newest_delivery_is_a_warning() -> None:
    arrived, lost = sent("a", 2), sent("b", 2, status_code=0)
    assert judge(arrived, arrived).verdict is OK
    assert judge(arrived, lost).verdict is WARNING
    found = judge(lost, arrived)
    assert found.verdict is FAILED
    assert "failed to connect to host" in found.words
    assert "public_url" in found.fix


@pytest.mark.parametrize(
    ("received", "verdict"),
    [
        (receive(new=2, old=60), OK),
        (receive(new=1.5, old=59.5), OK),
        (receive(new=2), WARNING),
        (receive(new=2, old=55), WARNING),
        (receive(old=60), FAILED),
        (receive(new=0.5, old=60), FAILED),
        (receive(), FAILED),
    ],
)
@pytest.mark.parametrize(("is_relayed", "fix"), [(True, "forwarder"), (False, "forward POST /webhook")])
def test_what_somebody_took_and_did_not_pass_on_at_once_is_named(
    received: Received, verdict: DoctorVerdict, is_relayed: bool, fix: str
) -> None:
    found = judge(sent("new", 2, 200), sent("old", 60, 200), received=received, is_relayed=is_relayed)
    assert found.verdict is verdict, found
    assert ("GitHub delivered 2" in found.words) is (verdict is not OK)
    assert (fix in found.fix) is (verdict is FAILED or (verdict is WARNING and not is_relayed))


def test_what_need_not_be_in_the_inbox_is_not_looked_for_there() -> None:
    under_way, ping, forgotten = sent("a", 0.5), sent("b", 5, 200, event="ping"), sent("c", 3 * 24 * 60 + 1)
    unworked = sent("d", 5, event="pull_request")
    assert judge(under_way, ping, forgotten, unworked, received=receive()).verdict is OK


def test_without_the_inbox_nothing_is_said_of_what_a_forwarder_took() -> None:
    assert "arrived" in judge(sent("a", 2)).words
    assert "reached the forwarder" in judge(sent("a", 2), is_relayed=True).words


@pytest.mark.parametrize(
    ("said", "verdict", "words"),
    [
        ([("4999", "5000")], OK, "4,999 of 5,000"),
        ([("500", "5000")], OK, "500 of 5,000"),
        ([("499", "5000")], WARNING, "499 of 5,000"),
        ([("4999", "5000"), ("0", "60")], FAILED, "0 of 60"),
        ([("many", "5000"), ("", ""), ("-1", "5000"), ("1", "9" * 40)], OK, "no rate limit"),
        ([], OK, "no rate limit"),
    ],
)
def test_what_is_left_of_the_rate_limit_is_judged_and_what_cannot_be_read_is_not(
    said: list[tuple[str, str]], verdict: DoctorVerdict, words: str
) -> None:
    read = [parse_left({"x-ratelimit-remaining": calls, "x-ratelimit-limit": limit}) for calls, limit in said]
    found = judge_left(PART, [left for left in read if isinstance(left, Left)])
    assert (found.verdict, words in found.words) == (verdict, True)
    assert bool(found.fix) is (verdict is not OK)


def test_labels_that_are_missing_are_named_with_the_way_to_create_them() -> None:
    page = "https://github.com/octo/widgets"
    assert judge_labels(PART, page, ["ptq", "ptq:fix"], []).words == "ptq, ptq:fix"
    assert judge_labels(PART, page, [], []).verdict is OK
    found = judge_labels(PART, page, ["ptq", "help wanted"], ["help wanted"])
    assert (found.verdict, "no label help wanted on GitHub" in found.words) == (WARNING, True)
    assert f"{page}/labels" in found.fix
    assert f"gh label create 'help wanted' -R {page}" in found.fix


SECRET = "jobs: {a: {env: {K: '${{ secrets.K }}'}}}"


@pytest.mark.parametrize(
    ("workflow", "runs"),
    [
        (f"on: push\n{SECRET}", True),
        (f"on: [push, pull_request]\n{SECRET}", True),
        (f'"on": {{push: }}\n{SECRET}', True),
        (f"on: {{push: {{branches: ['**']}}}}\n{SECRET}", True),
        (f"on: {{push: {{branches: ['ptq/*']}}}}\n{SECRET}", True),
        (f"on: {{push: {{branches-ignore: [main]}}}}\n{SECRET}", True),
        (f"on: {{push: {{branches-ignore: ['ptq/issue-*']}}}}\n{SECRET}", True),
        ("on: push\npermissions: write-all\njobs: {}", True),
        (f"on: {{push: {{branches: ['*']}}}}\n{SECRET}", False),
        (f"on: {{push: {{branches: [main]}}}}\n{SECRET}", False),
        (f"on: {{push: {{branches: ['**', '!ptq/**']}}}}\n{SECRET}", False),
        (f"on: {{push: {{branches-ignore: ['ptq/**']}}}}\n{SECRET}", False),
        (f"on: {{push: {{branches: ['{'*' * 40}Z']}}}}\n{SECRET}", False),
        (f"on: {{push: {{branches: ['{'**/' * 40}Z']}}}}\n{SECRET}", True),
        (f"on: {{push: {{branches: [&a [x, x], &b [*a, *a], &c [*b, *b], [*c, *c]]}}}}\n{SECRET}", False),
        (f"on: {{push: {{tags: ['v*']}}}}\n{SECRET}", False),
        (f"on: pull_request\n{SECRET}", False),
        ("on: push\njobs: {a: {secrets: inherit}}", True),
        ("on: push\njobs: {a: {env: {K: \"${{ secrets['K'] }}\"}}}", True),
        ("on: push\npermissions: {contents: write}\njobs: {}", True),
        ("on: push\njobs: {a: {steps: [{run: ./overwrite all}]}}", False),
        ("on: push\njobs: {}", False),
        ("on: push\n  - what: [", False),
        ("- a list", False),
        ("", False),
    ],
)
def test_a_workflow_that_would_run_our_branches_with_secrets_is_told_from_others(workflow: str, runs: bool) -> None:
    assert runs_our_branches(workflow.encode()) is runs


GPU = Gpu("nvidia", "GPU-1", ("nvidia0",), "NVIDIA H100", 81_559, "550.54")


def room(**values: object) -> Inventory:
    whole = {"gpus": (GPU,), "gpu_trouble": None, "free_bytes": 10**12, "total_bytes": 10**12, "free_inodes": None}
    return Inventory(**{**whole, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        (room(), [OK, OK]),
        (room(free_inodes=0), [FAILED, OK]),
        (room(gpus=(), gpu_trouble="nvidia-smi failed: driver/library version mismatch"), [OK, FAILED]),
        (room(gpus=()), [OK, WARNING]),
    ],
)
def test_disk_and_gpus_are_judged(inventory: Inventory, expected: list[DoctorVerdict]) -> None:
    machine = Machine("gpu-1", "/srv", labels=frozenset({"gpu"}))
    assert [found.verdict for found in judge_room(PART, machine, inventory)] == expected


def test_what_a_sandbox_leaves_open_is_a_warning() -> None:
    machine = Machine("gpu-1", "/srv")
    assert judge_sandbox(PART, machine, Capabilities(True, "sealed: user, mount", "overlay", [])).verdict is OK
    found = judge_sandbox(
        PART, machine, Capabilities(True, "sealed", "overlay", ["the account is in the group docker"])
    )
    assert found.verdict is WARNING
    assert "group docker" in found.words
    assert judge_sandbox(PART, machine, UNSEALED).verdict is WARNING


def test_a_host_of_our_own_that_seals_no_jobs_is_a_failure() -> None:
    found = judge_sandbox(PART, Machine("here", "/srv", kind="local"), UNSEALED)
    assert found.verdict is FAILED
    assert "can read its keys and database" in found.words


@pytest.mark.parametrize(
    ("mode", "owner", "verdict"),
    [
        *((mode, 1000, OK) for mode in (0o600, 0o400, 0o700)),
        *((mode, 0, OK) for mode in (0o640, 0o440)),
        *((mode, 1000, WARNING) for mode in (0o640, 0o440, 0o610)),
        *((mode, owner, FAILED) for mode in (0o604, 0o602, 0o601, 0o644, 0o660, 0o620, 0o666) for owner in (0, 1000)),
    ],
)
def test_a_file_with_secrets_is_judged_by_who_else_may_read_or_change_it(
    mode: int, owner: int, verdict: DoctorVerdict
) -> None:
    found = judge_file(Path("/etc/ptq/a key.pem"), stat.S_IFREG | mode, owner)
    assert found.verdict is verdict, found.words
    assert found.fix in ("", "chmod go-rwx '/etc/ptq/a key.pem'")
    assert verdict is OK or f"{mode:04o}" in found.words


@pytest.mark.parametrize(
    ("caps", "verdict", "words"),
    [
        (DEFAULT_CAPS, OK, "$10.00 per job, $50.00 per person per day, $500.00 per repository per month"),
        ({Scope.USER_DAY: Caps(jobs=20)}, OK, "none on money, but others"),
        ({scope: Caps(output_bytes=1) for scope in Scope}, WARNING, "nothing limits what agents spend"),
    ],
)
def test_a_repository_without_caps_is_a_warning(caps: Mapping[Scope, Caps], verdict: DoctorVerdict, words: str) -> None:
    found = judge_caps(PART, caps)
    assert (found.verdict, found.words) == (verdict, words)


@pytest.mark.parametrize(
    ("caps", "verdict", "words"),
    [
        (DEFAULT_CAPS, OK, "turns and time are capped instead"),
        ({Scope.JOB: Caps(turns=9)}, OK, "caps on turns or time hold"),
        ({Scope.ISSUE: Caps(jobs=9)}, WARNING, "neither turns nor time are capped"),
        ({Scope.ISSUE: Caps(cost_usd=9)}, WARNING, "the gateway refuses the model"),
    ],
)
def test_an_agent_whose_cost_is_unknown_needs_other_caps(
    caps: Mapping[Scope, Caps], verdict: DoctorVerdict, words: str
) -> None:
    found = judge_unknown_cost(PART, "mine", "the cost of a command is unknown", caps)
    assert (found.verdict, words in found.words) == (verdict, True)


def test_the_caps_of_a_repository_and_its_agents_of_unknown_cost_are_looked_at(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    (rules,) = settings.repository_rules()
    caps, cost = check_caps(PART, settings, rules)
    assert (caps.check, caps.verdict, cost.check, cost.verdict) == ("caps", OK, f"cost of {rules.agents[0]}", OK)


@pytest.mark.parametrize(
    ("spec", "verdict", "words"),
    [
        (AgentSpec("mine", "claude"), WARNING, "no API key"),
        (AgentSpec("mine", "claude", env={"ANTHROPIC_API_KEY": "k"}), WARNING, "readable by jobs"),
        (AgentSpec("mine", "command"), OK, "no API key"),
    ],
)
def test_an_agent_that_has_no_key_is_named(spec: AgentSpec, verdict: DoctorVerdict, words: str) -> None:
    found = judge_key(PART, spec)
    assert (found.verdict, words in found.words, bool(found.fix)) == (verdict, True, verdict is WARNING)


@pytest.mark.parametrize(
    ("operators", "verdict", "words"),
    [
        ((), WARNING, "nobody sees deliveries"),
        (("octocat", "ada"), OK, "ada, octocat"),
        (None, OK, "nobody can sign in"),
    ],
)
def test_an_installation_without_operators_is_a_warning(
    operators: tuple[str, ...] | None, verdict: DoctorVerdict, words: str
) -> None:
    table = DashboardTable()
    if operators is not None:
        table = DashboardTable(client_id="Iv1", client_secret=SecretStr("hush"), operators=frozenset(operators))
    found = judge_operators(table)
    assert (found.verdict, words in found.words) == (verdict, True)


def test_every_file_with_secrets_is_looked_at(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    for path in (config, tmp_path / "app.pem"):
        path.chmod(0o600)
    (tmp_path / "ptq.db").touch(mode=0o600)
    settings = load_settings(config)
    assert [found.verdict for found in check_files(settings)] == [OK, OK, OK]
    for name in ("ptq.toml", "app.pem", "ptq.db", "ptq.db-wal", "ptq.db-shm", "ptq.db.lock"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    assert [found.verdict for found in check_files(settings)] == 6 * [FAILED]


def test_what_only_follows_from_another_problem_is_hidden_and_makes_its_cause_as_severe() -> None:
    warning, failure, well = PART.warn("cause", "w", "f"), PART.fail("cause", "w", "f"), PART.ok("cause", "w")
    strict = PART.fail("effect", "w", "f", Cause("part", "cause"))
    lenient = PART.fail("effect", "w", "f", Cause("part", "cause", may_be_warning=True))
    assert hide_consequences([failure, strict]) == [failure]
    assert hide_consequences([warning, lenient]) == [failure]
    for unexplained in ([warning, strict], [well, lenient], [lenient]):
        assert hide_consequences(unexplained) == unexplained


@pytest.mark.parametrize("status", [200, 502])
async def test_only_a_service_that_runs_nowhere_explains_why_deliveries_fail(tmp_path: Path, status: int) -> None:
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    app.router.add_get("/healthz", answer)
    async with TestServer(app) as elsewhere, aiohttp.ClientSession() as session:
        settings = load_settings(configure(tmp_path, 0))
        server = settings.server.model_copy(update={"public_url": str(elsewhere.make_url("")).rstrip("/")})
        settings = settings.model_copy(update={"server": server})
        found = [finding async for finding in check_service(session, settings)]
    shown = hide_consequences([*found, judge(sent("a", 2, status_code=502))])
    failed = [finding.check for finding in shown if finding.verdict is FAILED]
    assert failed == (["deliveries"] if status == 200 else ["running"])


def test_the_table_says_what_to_do_and_shows_no_control_characters() -> None:
    findings = [
        PART.ok("a", "well"),
        PART.fail("longer", "it is on\nfire", "put it out"),
        Part("b").warn("c", "d", "e"),
    ]
    assert render_findings(findings) == (
        "part\n"
        "  ok       a       well\n"
        "  FAILED   longer  it is on fire\n"
        "                   -> put it out\n"
        "b\n"
        "  warning  c       d\n"
        "                   -> e\n"
        "\n"
        "1 failed, 1 warning, 1 ok\n"
    )
    assert has_failed(findings)
    assert not has_failed(findings[:1])
