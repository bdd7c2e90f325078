from __future__ import annotations

import base64
import tomllib
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from bot.config.contradictions import list_unknown_costs
from bot.config.policy_tables import (
    CapsTable,
    CapsTables,
    DashboardTable,
    GatewayTable,
    LimitsTable,
    NotifyTable,
    PriceTable,
    RecoveryTable,
    RepositoryTable,
    RetentionTable,
)
from bot.config.settings import ConfigError, Settings, load_settings
from bot.config.tables import AgentGatewayTable, AgentTable, GitHubTable, MachineTable, ProxyTable, ServerTable, Table
from handlers.rules import PRESETS
from runner.model.caps import Caps, Scope
from runner.model.environment import Companion, Limits
from tests.support.scripted_github import app_key_pem, make_app_key

EXAMPLE = Path(__file__).parents[2] / "ptq.example.toml"
NO_PASSWORD = serialization.NoEncryption()
PKCS1 = app_key_pem()
PEM = make_app_key().private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD).decode()


def write(folder: Path, change: Callable[[str], str] = str) -> Path:
    """The example, changed as text, with the files that it names."""
    (folder / "app.pem").write_text(PEM)
    (folder / "id_ed25519").touch()
    for name in ("known_hosts", "ssh_config"):
        (folder / name).touch()
    path = folder / "ptq.toml"
    path.write_text(change(EXAMPLE.read_text()))
    return path


def load(folder: Path, change: Callable[[str], str] = str, **environ: str) -> Settings:
    return load_settings(write(folder, change), environ)


def problems(folder: Path, change: Callable[[str], str], **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(folder, change, **environ)
    return caught.value.problems


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    settings = load(tmp_path)
    (machine,) = settings.machine_list()
    assert (machine.name, machine.slots, machine.labels) == ("gpu-1", 2, frozenset({"gpu", "h100"}))
    assert machine.client_key_file == tmp_path / "id_ed25519"
    (rules,) = settings.repository_rules()
    assert (rules.name, rules.labels["ptq:fix"], rules.lint_command) == ("octo/widgets", "fix", "ruff format .")
    (profile,) = settings.profile_list()
    assert (profile.limits.timeout_s, profile.limits.max_changes) == (7200, 300)
    assert settings.webhook_secrets() == ("current", "previous")
    assert settings.server.database_url == f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"


def test_the_example_shows_every_key_with_its_default() -> None:
    text = EXAMPLE.read_text()
    example = tomllib.loads(text)
    tables: dict[type[Table], Any] = {
        GitHubTable: example["github"],
        ServerTable: example["server"],
        ProxyTable: example["proxy"],
        AgentTable: example["agents"]["mine"],
        AgentGatewayTable: example["agents"]["mine"]["gateway"],
        GatewayTable: example["gateway"],
        MachineTable: example["machines"][0],
        RepositoryTable: example["repos"]["octo/widgets"],
        LimitsTable: example["limits"],
        RetentionTable: example["retention"],
        CapsTables: example["caps"],
        CapsTable: {key: 1 for table in example["caps"].values() for key in table},
        PriceTable: example["prices"]["some-model"],
        DashboardTable: example["dashboard"],
        NotifyTable: example["notify"],
        RecoveryTable: example["recovery"],
    }
    # Nobody needs them, or not beside others.
    instead = {"private_key", "ca_file", "webhook_url", "client_secret_file", "credentials_file", "brief"}
    for table, shown in tables.items():
        assert set(shown) | instead >= {field.alias or key for key, field in table.model_fields.items()}, table
    assert all(f"# {key} =" in text or f"or {key} =" in text for key in instead)
    assert Limits(**example["limits"]) == Limits()
    assert RecoveryTable(**example["recovery"]) == RecoveryTable()


@pytest.mark.parametrize("value", ['"own.md"', '["own.md"]'])
def test_a_repositorys_brief_is_read_and_follows_its_profiles(tmp_path: Path, value: str) -> None:
    (tmp_path / "own.md").write_text("Ask `make check` first.\n")
    change = swap('# brief = "widgets.md"', f"brief = {value}")
    alone = load(tmp_path, lambda text: change(text).replace('profile = "pytorch"', ""))
    assert alone.repository_rules()[0].brief == "Ask `make check` first."
    brief = load(tmp_path, change).repository_rules()[0].brief
    assert brief.startswith("### Where things are\n")
    assert brief.endswith("\n\nAsk `make check` first.")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('# brief = "widgets.md"', "brief = 5", "brief: must be a list"),
        ("limits = { timeout_s = 7200 }", "limits = 5", "limits: must be a table"),
    ],
)
def test_a_number_in_place_of_what_a_profile_also_has_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    (found,) = problems(tmp_path, swap(old, new))
    assert found.startswith(f'repos."octo/widgets".{problem}')


@pytest.mark.parametrize(("text", "problem"), [(None, "does not exist: "), (" \n", "must hold 1 to 20,000 characters")])
def test_a_brief_that_cannot_be_told_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "own.md").write_text(text)
    (found,) = problems(tmp_path, swap('# brief = "widgets.md"', 'brief = "own.md"'))
    assert found.startswith(f'repos."octo/widgets".brief: {problem}')


@pytest.mark.parametrize("key", [PEM, PKCS1, PEM.replace("\n", "\\n"), base64.b64encode(PEM.encode()).decode()])
def test_a_private_key_is_taken_in_every_form_that_people_paste(tmp_path: Path, key: str) -> None:
    settings = load(tmp_path, swap('private_key_file = "app.pem"', f"private_key = '''{key}'''"))
    assert settings.github.read_private_key().startswith("-----BEGIN")


@pytest.mark.parametrize(
    "place", ["ptq:hunter%4022@db.example:5432/ptq?ssl=require", "db.example/ptq", "ptq@[::1]:5433/ptq"]
)
def test_a_database_of_postgresql_is_taken_as_it_stands(tmp_path: Path, place: str) -> None:
    url = f"postgresql+asyncpg://{place}"
    settings = load(tmp_path, PTQ_SERVER__DATABASE_URL=url)
    assert settings.server.database_url == url
    assert ("hunter@22" in settings.secret_values()) == ("hunter" in place)
    assert "hunter" not in repr(settings)


def test_environment_variables_override_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        PTQ_GITHUB__API_URL="https://ghe.example/api/v3/",
        PTQ_SERVER__PORT="9000",
        PTQ_GITHUB__WEBHOOK_SECRETS="one, two",
        PTQ_LIMITS__TIMEOUT_S="5",
        PTQ_TEST_ANYTHING="x",
        OTHER="y",
    )
    assert (settings.github.api_url, settings.server.port) == ("https://ghe.example/api/v3", 9000)
    assert settings.webhook_secrets() == ("one", "two")
    assert settings.limits.timeout_s == 5


def test_lists_in_the_environment_are_json(tmp_path: Path) -> None:
    settings = load(tmp_path, PTQ_GITHUB__WEBHOOK_SECRETS='["with, comma"]')
    assert settings.webhook_secrets() == ("with, comma",)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('app_id = "12345"', "", "github.app_id: is missing"),
        (
            'webhook_secrets = ["current", "previous"]',
            "webhook_secrets = []",
            "github.webhook_secrets: must not be empty",
        ),
        ('["current", "previous"]', '["current", " "]', "github.webhook_secrets[1]: must not be empty"),
        ('client_secret = "the-apps-own"', "", "dashboard: give client_id and exactly one of client_secret_file and"),
        ('client_id = "Iv1.0123456789abcdef"', "", "dashboard: give client_id and exactly one of client_secret_file"),
        (
            'client_secret = "the-apps-own"',
            'client_secret_file = "known_hosts"',
            "dashboard.client_secret_file: must not be empty",
        ),
        ('"app.pem"', '"other.pem"', "github.private_key_file: cannot be read: No such file or directory"),
        ('"app.pem"', '"known_hosts"', "github.private_key_file: the private key is not an unencrypted RSA key"),
        ('private_key_file = "app.pem"', "", "github: give exactly one of private_key_file and private_key"),
        ('api_url = "https://api.github.com"', 'api_url = "api.github.com"', "github.api_url: must be an http(s) URL"),
        ("port = 8080", 'port = "high"', "server.port: must be a whole number"),
        (
            '"sqlite+aiosqlite:///ptq.db"',
            '"postgresql://u@h/d"',
            "server.database_url: must be sqlite+aiosqlite:///FILE",
        ),
        ('"sqlite+aiosqlite:///ptq.db"', '"postgresql+asyncpg://u:hunter2@h"', "server.database_url: must be sqlite"),
        ('"sqlite+aiosqlite:///ptq.db"', '"postgresql+asyncpg://u:p@s:w@h/d"', "server.database_url: must be sqlite"),
        ('"sqlite+aiosqlite:///ptq.db"', '"postgresql+asyncpg://u@h:x/d"', "server.database_url: must be sqlite"),
        ('"sqlite+aiosqlite:///ptq.db"', '"ptq.db"', "server.database_url: must be sqlite+aiosqlite:///FILE"),
        ('kind = "claude"', 'kind = "cloud"', "agents.mine.kind: must be one of: claude, codex, command, cursor, pi"),
        ('command = ["/opt/claude"]', "command = []", "agents.mine.command: must not be empty"),
        ('host = "10.0.0.5"', "", "machines[0]: a machine behind SSH also needs: host"),
        ('"ops@bastion.example:22"', '"-oX=y"', "machines[0].jump_hosts[0]: is not a host like user@host:port"),
        ('"known_hosts"', '"elsewhere"', "machines[0].known_hosts_file: does not exist"),
        ('"known_hosts"', '"/"', "machines[0].known_hosts_file: cannot be read: Is a directory"),
        ('"known_hosts"', f'"{"x" * 5000}"', "machines[0].known_hosts_file: cannot be read: File name too long"),
        ('workspace = "/srv/ptq"', 'workspace = "ptq"', "machines[0].workspace: must be an absolute path"),
        ("slots = 2", "slots = 0", "machines[0].slots: "),
        ('sandbox = "auto"', 'sandbox = "yes"', "machines[0].sandbox: "),
        (
            'agent = "mine"',
            'agent = "yours"',
            'repos."octo/widgets".agent: there is no [agents.yours]; available: mine',
        ),
        ('requires = ["gpu"]', 'requires = ["tpu"]', 'repos."octo/widgets".requires: no machine has all of these'),
        (
            '["h100"] }',
            '["mi300"] }',
            'repos."octo/widgets".routes."module: cuda": no machine has all of these labels: gpu, mi300',
        ),
        ('"ptq" = "diagnose"', '"ptq" = "heal"', 'repos."octo/widgets".labels.ptq: unknown preset; available: repro'),
        ("slots = 2", "slot = 2", "machines[0].slot: unknown key; did you mean slots?"),
        ("timeout_s = 3600", "timeout = 3600", "limits.timeout: unknown key; did you mean timeout_s?"),
        ("\n[github]\n", "\n[github]]\n", "invalid TOML at line 4, column "),
    ],
)
def test_each_mistake_is_named_by_its_key_and_says_what_to_do(tmp_path: Path, old: str, new: str, problem: str) -> None:
    (found,) = problems(tmp_path, swap(old, new))
    assert found.startswith(problem)


def test_a_repository_without_an_owner_is_told_so(tmp_path: Path) -> None:
    said = problems(tmp_path, lambda text: text.replace('repos."octo/widgets"', "repos.widgets"))
    assert said == ("repos.widgets: a repository is named owner/name",)


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    def change(text: str) -> str:
        for old, new in (
            ('"12345"', '""'),
            ("port = 22", "port = 0"),
            ('agent = "mine"', 'agent = "x"'),
            ('"fix"', '"y"'),
        ):
            text = swap(old, new)(text)
        return text

    assert len(problems(tmp_path, change)) == 4


def test_two_machines_with_one_name_and_one_repository_twice_are_refused(tmp_path: Path) -> None:
    def change(text: str) -> str:
        machine = text[text.index("[[machines]]") : text.index('[repos."octo')]
        return f'{text}\n{machine}\n[repos."Octo/Widgets"]\nagent = "mine"\n'

    found = problems(tmp_path, change)
    assert "machines: two machines are named gpu-1" in found
    assert 'repos."Octo/Widgets": on GitHub this is the same as octo/widgets' in found


def test_a_label_that_we_put_on_ourselves_can_command_nothing(tmp_path: Path) -> None:
    for given, key in (('"ptq" = "diagnose"', "labels"), ('"ptq:pause"', "pause_label")):
        ours = given.replace("ptq:pause", "PTQ: Running").replace('"ptq" ', '"PTQ: Running" ')
        (problem,) = problems(tmp_path, swap(given, ours))
        assert problem.startswith(f'repos."octo/widgets".{key}')
        assert problem.endswith(": with case_labels, ptq-bot adds this label: choose another")


def add_preset(name: str, more: str) -> Callable[[str], str]:
    return lambda text: f'{text}\n[presets.{name}]\nfile = "steps.md"\n{more}\n'


def test_the_instructions_of_a_built_in_preset_can_be_replaced_and_nothing_else_of_it(tmp_path: Path) -> None:
    (tmp_path / "steps.md").write_text("1. Profile it.\n")
    presets = load(tmp_path, add_preset("fix", "")).preset_table()
    assert presets["fix"] == replace(PRESETS["fix"], instructions="1. Profile it.\n")
    assert list(presets) == list(PRESETS)
    for more, key in (('goal = "do it"', "goal"), ("may_change = true", "may_change")):
        (problem,) = problems(tmp_path, add_preset("fix", more))
        assert problem.startswith(f"presets.fix.{key}: only the instructions of a built-in preset can be replaced")
    (problem,) = problems(tmp_path, add_preset("rebase", ""))
    assert problem.startswith("presets.rebase: this built-in preset cannot be replaced; these can: repro, diagnose,")


def test_a_preset_of_ones_own_has_a_goal_and_may_carry_on_if_it_may_change_something(tmp_path: Path) -> None:
    (tmp_path / "steps.md").write_text("1. Profile it.\n")
    own = 'goal = "polish"\ncarries_on = true\n'
    preset = load(tmp_path, add_preset("own", f"{own}may_change = true")).preset_table()["own"]
    assert (preset.goal, preset.carries_on, preset.may_change) == ("polish", True, True)
    assert problems(tmp_path, add_preset("own", "")) == ("presets.own.goal: is missing",)
    (problem,) = problems(tmp_path, add_preset("own", own))
    assert problem.startswith("presets.own: carries_on needs may_change = true")


def test_a_local_machine_needs_no_keys(tmp_path: Path) -> None:
    def change(text: str) -> str:
        lines = [
            line for line in text.splitlines() if not line.startswith(('host = "10', "user", "client_key", "known_"))
        ]
        return "\n".join(lines).replace('kind = "ssh"', 'kind = "local"')

    assert load(tmp_path, change).machine_list()[0].kind == "local"


SECRET = "hunter2-in-the-wrong-place"


def test_a_cap_on_money_needs_agents_whose_money_is_known(tmp_path: Path) -> None:
    def change(text: str) -> str:
        return text.replace('kind = "claude"', 'kind = "codex"', 1).replace('"some-model"', '"unheard-of"', 1)

    (problem,) = problems(tmp_path, change)
    assert problem.startswith("agents.mine: the price of model unheard-of is unknown, so caps on cost_usd don't work")

    def have_own_key(text: str) -> str:
        before, _, gateway = text.partition("[agents.mine.gateway]")
        return swap('kind = "claude"', 'kind = "command"')(before + gateway[gateway.index("\n[") :])

    found = problems(tmp_path, have_own_key)
    assert any(problem.startswith("agents.mine: the cost of a command is unknown") for problem in found)
    dated = load(tmp_path, lambda text: change(text).replace("unheard-of", "gpt-5-2025-08-07"))
    assert dated.agents["mine"].model == "gpt-5-2025-08-07"


@pytest.mark.parametrize(
    ("kind", "model", "behind_gateway", "reason"),
    [
        ("command", None, False, "the cost of a command is unknown"),
        ("command", None, True, None),
        ("claude", "unheard-of", False, None),
        ("claude", "unheard-of", True, "the price of model unheard-of is unknown"),
        ("claude", None, True, None),
        ("codex", "unheard-of", False, "the price of model unheard-of is unknown"),
        ("codex", None, False, "without a model the price is unknown"),
        ("codex", "gpt-5", False, None),
    ],
)
def test_the_cost_of_an_agent_is_known_by_what_it_says_or_by_a_price(
    kind: str, model: str | None, behind_gateway: bool, reason: str | None
) -> None:
    reasons = [*list_unknown_costs(kind, [model], {}, behind_gateway=behind_gateway)]
    assert reasons == ([reason] if reason else [])


def test_an_agent_that_would_reach_no_model_is_refused(tmp_path: Path) -> None:
    def take_gateway(text: str) -> str:
        before, _, gateway = text.partition("[agents.mine.gateway]")
        return before + gateway[gateway.index("\n[") :]

    def seal(text: str) -> str:
        return take_gateway(text).replace('network = "host" ', 'network = "none" ', 1)

    found = problems(tmp_path, seal)
    assert any("the agent mine needs [agents.mine.gateway] to reach its model" in problem for problem in found), found

    def by_profile(text: str) -> str:
        lines = [line for line in take_gateway(text).splitlines() if not line.startswith("network = ")]
        return "\n".join(lines)

    found = problems(tmp_path, by_profile)
    assert any('repos."octo/widgets".network: with none' in problem for problem in found), found


def test_a_repository_is_named_by_its_table_and_by_what_belongs_to_it(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.repository_names() == {"octo/widgets", "ptq-forks/widgets"}
    more = {"push_to": "Forks/widgets", "private_repositories": ("octo/Parts",)}
    table = settings.repos["octo/widgets"].model_copy(update=more)
    settings = settings.model_copy(update={"repos": {"Octo/widgets": table}})
    assert settings.repository_names() == {"octo/widgets", "forks/widgets", "octo/parts"}


def test_private_repositories_beside_a_clone_url_are_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, swap("private_repositories = []", 'private_repositories = ["octo/parts"]'))
    assert any("private_repositories cannot be used with clone_url" in problem for problem in found), found


@pytest.mark.parametrize("host", ["https://pypi.org", "pypi.org/simple", "*", "", "a b", "*.*.org"])
def test_a_host_of_packages_is_a_name(tmp_path: Path, host: str) -> None:
    (problem,) = problems(tmp_path, swap("package_hosts = []", f'package_hosts = ["{host}"]'))
    assert problem.startswith('repos."octo/widgets".package_hosts[0]: ')


@pytest.mark.parametrize("kind", ["command", "cursor"])
def test_a_key_that_would_do_nothing_is_refused(tmp_path: Path, kind: str) -> None:
    found = problems(tmp_path, swap('kind = "claude"', f'kind = "{kind}"'))
    assert any(f"an agent of kind {kind} has no key: thinking" in problem for problem in found)


def test_caps_are_inherited_key_by_key(tmp_path: Path) -> None:
    (profile,) = load(tmp_path, swap("{ issue = { cost_usd = 30.0 } }", "{ issue = { turns = 9 } }")).profile_list()
    assert profile.caps[Scope.ISSUE] == Caps(jobs=20, turns=9)
    assert profile.caps[Scope.JOB].turns == 300


def uncap(text: str) -> str:
    """The example without caps, and with an agent whose cost is unknown."""
    before, _, rest = text.partition("[caps.job]")
    text = before + rest[rest.index("[prices.") :]
    text = text.replace("caps = { issue = { cost_usd = 30.0 } }", "caps = {}").replace(
        '"some-model"', '"unheard-of"', 1
    )
    return text.replace('kind = "claude"', 'kind = "codex"', 1)


def test_without_caps_there_are_default_caps_with_which_every_model_may_work(tmp_path: Path) -> None:
    settings = load(tmp_path, uncap)
    (profile,), (rules,) = settings.profile_list(), settings.repository_rules()
    money = {scope: caps.cost_usd for scope, caps in rules.caps.items() if caps.cost_usd}
    assert money == {Scope.JOB: 10.0, Scope.USER_DAY: 50.0, Scope.REPOSITORY_MONTH: 500.0}
    assert profile.caps == rules.caps
    assert not any(caps.needs_prices for caps in rules.caps.values())
    assert rules.caps[Scope.USER_DAY] == Caps(cost_usd=50.0, unpriced_turns=1_500, unpriced_run_s=18_000)


@pytest.mark.parametrize("by_variable", [False, True])
def test_unlimited_switches_one_cap_off(tmp_path: Path, by_variable: bool) -> None:
    if by_variable:
        settings = load(tmp_path, uncap, PTQ_CAPS__USER_DAY__COST_USD="unlimited", PTQ_CAPS__JOB__COST_USD="unlimited")
    else:
        more = '\n[caps.user_day]\ncost_usd = "unlimited"\n[caps.job]\ncost_usd = "unlimited"\n'
        settings = load(tmp_path, lambda text: uncap(text) + more)
    (profile,) = settings.profile_list()
    assert profile.caps[Scope.USER_DAY] == profile.caps[Scope.JOB] == Caps()
    assert profile.caps[Scope.REPOSITORY_MONTH].cost_usd == 500.0


def test_a_repository_can_lift_a_cap_of_all(tmp_path: Path) -> None:
    more = "\n[caps.user_day]\ncost_usd = 5.0\n"
    lifted = 'caps = { user_day = { cost_usd = "unlimited" } }'
    (profile,) = load(tmp_path, lambda text: uncap(text).replace("caps = {}", lifted) + more).profile_list()
    assert profile.caps[Scope.USER_DAY] == Caps()


def cap_a_day(more: str) -> Callable[[str], str]:
    """An agent of known cost, and these keys of `[caps.user_day]`."""
    return lambda text: uncap(text).replace('"unheard-of"', '"gpt-5"', 1) + f"\n[caps.user_day]\n{more}\n"


def test_the_operators_own_caps_replace_the_defaults(tmp_path: Path) -> None:
    (profile,) = load(tmp_path, cap_a_day("cost_usd = 5")).profile_list()
    assert profile.caps[Scope.USER_DAY] == Caps(cost_usd=5.0)
    (profile,) = load(tmp_path, cap_a_day("run_s = 90000")).profile_list()
    assert profile.caps[Scope.USER_DAY] == Caps(
        cost_usd=50.0, run_s=90_000, unpriced_turns=1_500, unpriced_run_s=90_000
    ), "what is capped at unknown cost can be raised alone"


@pytest.mark.parametrize("amount", ['"none"', "0", "-1", "nan", "[]"])
def test_an_amount_is_a_number_or_unlimited(tmp_path: Path, amount: str) -> None:
    (problem,) = problems(tmp_path, cap_a_day(f"cost_usd = {amount}"))
    assert problem.startswith("caps.user_day.cost_usd: ")


SKILLS = 'skills = ["graph-breaks", ".claude/skills"]'
"""In the example."""


def test_skills_are_ours_the_operators_or_the_repositorys(tmp_path: Path) -> None:
    (tmp_path / "own" / "scripts").mkdir(parents=True)
    (tmp_path / "own" / "SKILL.md").write_text("---\nname: own\n---\n")
    (tmp_path / "own" / "scripts" / "x.py").write_text("pass\n")
    more = (
        '[skills.own]\nlabels = ["x"]\nfolder = "own"\n[skills.theirs]\nlabels = ["x"]\nin_repository = ".agents/x"\n'
    )
    skills = {skill.name: skill for skill in load(tmp_path, lambda text: text + more).skill_list()}
    assert sorted(skills["own"].files) == ["SKILL.md", "scripts/x.py"]
    assert skills["theirs"].in_repository == ".agents/x"
    assert "SKILL.md" in skills["graph-breaks"].files


def test_a_companion_is_fetched_from_github_from_the_branch_of_its_own_table(tmp_path: Path) -> None:
    def change(text: str) -> str:
        other = '\n[repos."octo/parts"]\nagent = "mine"\nbase_branch = "next"\nclone_url = "ssh://git.example/parts"\n'
        return swap("with = []", 'with = ["Octo/parts", "acme/tools"]')(text) + other

    settings = load(tmp_path, change)
    assert settings.repository_rules()[0].companions == ("Octo/parts", "acme/tools")
    assert settings.profile_list()[0].companions == (
        Companion("Octo/parts", "https://github.com/Octo/parts.git", "next"),
        Companion("acme/tools", "https://github.com/acme/tools.git", "HEAD"),
    )


@pytest.mark.parametrize(
    ("companions", "problem"),
    [
        ('["octo/parts", "Octo/Parts"]', ".with: names a repository twice"),
        ('["octo/Widgets"]', ".with: this is the repository itself"),
        ('["parts"]', ".with[0]: a repository is named owner/name"),
        (str([f"octo/parts{number}" for number in range(6)]), ".with: "),
    ],
)
def test_companions_are_a_few_other_repositories(tmp_path: Path, companions: str, problem: str) -> None:
    (found,) = problems(tmp_path, swap("with = []", f"with = {companions}"))
    assert found.startswith(f'repos."octo/widgets"{problem}')


def test_a_repository_has_skills_of_its_own_or_those_of_its_profile(tmp_path: Path) -> None:
    (rules,) = load(tmp_path, swap(SKILLS, 'skills = ["graph-breaks", "skills/"]')).repository_rules()
    assert rules.skills == ("graph-breaks", "skills/")
    profiled = {"agent": "mine", "profile": "pytorch"}
    assert RepositoryTable.model_validate(profiled).skills == (".claude/skills",)
    assert RepositoryTable.model_validate({**profiled, "skills": []}).skills == ()


@pytest.mark.parametrize(
    ("skills", "problem"),
    [
        ('["own"]', "there is no [skills.own]; available: graph-breaks; a folder of the repository has a slash: "),
        ('["../x"]', "must be the path of a folder in the repository"),
        ('["/etc/"]', "must be the path of a folder in the repository"),
        ('["Own"]', "must be the name of a skill, or the path of a folder in the repository, with a slash"),
    ],
)
def test_a_repository_cannot_name_a_skill_that_is_nowhere(tmp_path: Path, skills: str, problem: str) -> None:
    found = problems(tmp_path, swap(SKILLS, f"skills = {skills}"))
    assert any(problem in line for line in found)
    assert all(line.startswith('repos."octo/widgets".skills') for line in found)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            '[skills.nobodys]\nlabels = ["x"]\n',
            "skills.nobodys: there is no built-in skill of this name: set folder or in_repository",
        ),
        ('[skills.own]\nlabels = ["x"]\nfolder = "gone"\n', "skills.own.folder: is not a skill: "),
        ('[skills.own]\nin_repository = "x"\n', "skills.own: no job gets it: set labels, or name it in `skills`"),
        (
            '[skills.own]\nlabels = ["x"]\nin_repository = "../x"\n',
            "skills.own.in_repository: must be the path of a folder",
        ),
    ],
)
def test_a_skill_that_cannot_be_is_refused(tmp_path: Path, more: str, problem: str) -> None:
    (found,) = problems(tmp_path, lambda text: text + more)
    assert found.startswith(problem)


def test_an_agent_that_is_allowed_has_to_be_there(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, swap("agents = []", 'agents = ["other"]'))
    assert "there is no [agents.other]" in problem


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["current", "previous"]', f'"{SECRET}"'),
        ('["current", "previous"]', f'["{SECRET}", 5]'),
        ('private_key_file = "app.pem"', f'private_key = "{SECRET}"'),
        ('{ MODEL_KEY = "..." }', f'"{SECRET}"'),
        ('{ MODEL_KEY = "..." }', f'{{ MODEL_KEY = ["{SECRET}"] }}'),
        ('app_id = "12345"', f'app_id = ["{SECRET}"]'),
        ('["current", "previous"]', f'["{SECRET}'),
        ("port = 8080", f'port = "{SECRET}"'),
    ],
)
def test_no_message_ever_holds_a_value(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, swap(old, new))
    assert SECRET not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown


def test_a_loaded_configuration_shows_no_secret(tmp_path: Path) -> None:
    settings = load(tmp_path, swap('"..."', f'"{SECRET}"'))
    shown = f"{settings!r} {settings} {settings.agent_specs()!r}"
    for secret in (SECRET, "previous", PEM.splitlines()[1]):
        assert secret not in shown
    assert {SECRET, "current", "previous"} <= settings.secret_values()


def test_a_key_that_is_not_rsa_is_refused(tmp_path: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    pem = other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD)
    (found,) = problems(tmp_path, swap('private_key_file = "app.pem"', f"private_key = '''{pem.decode()}'''"))
    assert "not an RSA key" in found


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "none.toml", {})


def test_the_gateway_knows_the_models_that_the_operator_has_given_the_agent(tmp_path: Path) -> None:
    rule = load(tmp_path, lambda text: text).upstreams()["mine"].rule
    assert rule.own_models == ("some-model", "some-other-model")


def test_the_journal_of_a_database_in_a_folder_of_the_system_is_private_too(tmp_path: Path) -> None:
    settings = load(tmp_path, PTQ_SERVER__DATABASE_URL="sqlite+aiosqlite:////data/ptq.db")
    assert {Path("/data/ptq.db"), Path("/data/ptq.db-wal"), Path("/data/ptq.db-shm")} <= {*settings.private_places()}
