"""Set-up turns its forms into a valid configuration, or explains what is not valid."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.config.manifest import load_manifest, read_reasons
from bot.config.policy_tables import CapsTables
from bot.config.settings import load_settings
from bot.setup import steps
from bot.setup.answers import (
    AgentAnswer,
    Answers,
    App,
    CapsAnswer,
    MachineAnswer,
    Place,
    RepositoryAnswer,
    find_next,
)
from bot.setup.config_text import quote, render_config
from bot.setup.files import SetupFiles, UnusableFile
from bot.setup.github_app import find_form_address, make_manifest
from bot.setup.server import Setup
from bot.setup.steps import InvalidInput
from runner.model.caps import DEFAULT_CAPS, Caps, Scope
from tests.support import program
from tests.support.scripted_github import app_key_pem

APP = App("4711", "ptq-bot", "https://github.com/apps/ptq-bot", app_key_pem(), "hush", "Iv1", "hush too")
PLACE = {"web_url": "https://github.com", "app_name": "ptq", "public_url": "https://ptq.example/x/", "port": "8080"}
MACHINE = {"name": "gpu-1", "address": "ptq@10.0.0.5:2222", "slots": "2", "workspace": "/srv/ptq"}
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJw+Sg1RNrwMYr+6pCwwu1y8b2HnSeZ6jX5gmTyVHSeU"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
words = texts.filter(lambda text: text.strip() and "\0" not in text)


def complete(**changes: Any) -> Answers:
    machine = MachineAnswer("gpu-1", "/srv/ptq", host="10.0.0.5", user="ptq", host_key=HOST_KEY)
    agent, repository = AgentAnswer("mine", "command", ("true",)), RepositoryAnswer("octo/widgets")
    answers = Answers(app=APP, repositories=(repository,), machines=(machine,), agents=(agent,))
    return replace(answers, **changes)


def write(folder: Path, answers: Answers) -> Path:
    notes = SetupFiles(folder / "ptq.toml")
    notes.find_client_key()
    notes.write_config(answers, replace=True)
    return notes.config


@given(texts)
def test_every_text_survives_toml(text: str) -> None:
    assert tomllib.loads(f"x = {quote(text)}")["x"] == text


@pytest.mark.slow
@given(
    secret=words,
    command=st.lists(words, min_size=1, max_size=3).map(tuple),
    lines=st.lists(words, max_size=3).map(tuple),
    tests=words,
    labels=st.lists(words, min_size=2, max_size=2, unique=True),
    model=texts,
    private=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_service_reads_what_was_answered(
    tmp_path: Path,
    secret: str,
    command: tuple[str, ...],
    lines: tuple[str, ...],
    tests: str,
    labels: list[str],
    model: str,
    private: bool,
) -> None:
    repository = RepositoryAnswer("octo/widgets", private, lines, tests, tests)
    model = model if model.strip() else ""
    answers = complete(
        app=replace(APP, webhook_secret=secret),
        agents=(AgentAnswer("a-1", "command", command, model, "https://models.example", secret),),
        repositories=(repository,),
        diagnose_label=f"look {labels[0]}",
        fix_label=f"fix {labels[1]}",
    )
    read = load_settings(write(tmp_path, answers))
    (agent,), table = read.agent_specs(), read.repos["octo/widgets"]
    assert (read.webhook_secrets(), agent.command, agent.model or "") == ((secret,), command, model)
    assert read.upstreams()["a-1"].key == secret
    assert table.labels == {f"look {labels[0]}": "diagnose", f"fix {labels[1]}": "fix"}
    assert (table.setup, table.test_command, table.verify.script) == (lines, tests, tests)
    assert read.machine_list()[0].serves == {"private" if private else "public"}


def test_a_complete_configuration_has_every_address_and_file(tmp_path: Path) -> None:
    place = Place("https://ghe.example", "https://ghe.example/api/v3", webhook_url="https://smee.io/x", port=9000)
    kinds = (
        AgentAnswer("codex", "codex", gateway_url="https://api.openai.com", key="k-1", model="m"),
        AgentAnswer("pi", "pi", model="anthropic/opus", gateway_url="https://api.anthropic.com", key="k-2"),
        AgentAnswer("cursor", "cursor", key="k-3"),
    )
    local = MachineAnswer("here", "/srv/here", "local", slots=3)
    config = write(tmp_path, complete(place=place, agents=kinds, machines=(*complete().machines, local)))
    read = load_settings(config)
    ssh, here = read.machine_list()
    assert (ssh.client_key_file, ssh.known_hosts_file) == (tmp_path / "ptq-machines-key", tmp_path / "ptq-known-hosts")
    assert (here.kind, here.slots) == ("local", 3)
    assert read.server.delivery_url() == "https://smee.io/x"
    assert (read.server.port, read.github.api_url) == (9000, "https://ghe.example/api/v3")
    assert read.repos["octo/widgets"].agents == ("pi", "cursor")
    app = complete().app
    assert app
    assert (read.dashboard.client_id, read.dashboard.read_client_secret()) == (app.client_id, app.client_secret)
    assert "public = true" in config.read_text(), "who may see what is said, not left to be known"
    assert {path.name for path in tmp_path.iterdir()} >= {"ptq-app-4711.pem", "ptq-app-client-secret"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert sum(line.startswith("#") for line in config.read_text().splitlines()) > 8


def test_the_credentials_of_a_proxy_are_in_a_separate_file(tmp_path: Path) -> None:
    way = {"proxy": "http://proxy.example:3128", "proxy_credentials": "ptq:hush-hush"}
    answers = steps.set_place(complete(), {**PLACE, **way})
    assert {"ptq:hush-hush", "hush-hush"} <= set(answers.secrets())
    config = write(tmp_path, answers)
    proxy = load_settings(config).outbound().proxy
    assert proxy
    assert (proxy.url, proxy.credentials) == ("http://proxy.example:3128", "ptq:hush-hush")
    assert "hush-hush" not in config.read_text()
    assert (tmp_path / "ptq-proxy-credentials").stat().st_mode & 0o777 == 0o600
    kept = steps.set_place(answers, {**PLACE, **way, "proxy_credentials": ""}).place
    assert kept.proxy_credentials == "ptq:hush-hush", "the page does not show it, and so it comes back empty"
    without = render_config(replace(answers, place=replace(answers.place, proxy_credentials="")))
    config.write_text(without)
    proxy = load_settings(config, {"PTQ_PROXY__CREDENTIALS": "ptq:from-outside"}).outbound().proxy
    assert proxy
    assert (proxy.credentials, "from-outside" in repr(proxy)) == ("ptq:from-outside", False)
    other = steps.set_place(answers, {**PLACE, "proxy": "http://other.example:3128"}).place
    assert (other.proxy, other.proxy_credentials) == ("http://other.example:3128", "")
    for wrong in ({"proxy": "proxy.example"}, {"proxy_credentials": "ptq:hush"}, {**way, "proxy_credentials": "hush"}):
        with pytest.raises(InvalidInput) as caught:
            steps.set_place(complete(), {**PLACE, **wrong})
        assert "hush" not in str(caught.value)


def test_answers_survive_a_restart(tmp_path: Path) -> None:
    notes, answers = (
        SetupFiles(tmp_path / "ptq.toml"),
        complete(looked_at=MachineAnswer("gpu-2", programs={"git": "2"})),
    )
    assert notes.load() == Answers()
    notes.save(answers)
    assert notes.load() == answers
    assert notes.path.stat().st_mode & 0o777 == 0o600
    notes.path.write_text("{}x")
    with pytest.raises(UnusableFile, match="remove it to start again"):
        notes.load()


def test_an_existing_configuration_is_replaced_only_on_request(tmp_path: Path) -> None:
    notes = SetupFiles(tmp_path / "ptq.toml")
    notes.find_client_key()
    notes.config.write_text("mine")
    with pytest.raises(FileExistsError):
        notes.write_config(complete(), replace=False)
    assert notes.config.read_text() == "mine"
    notes.write_config(complete(), replace=True)
    assert load_settings(notes.config).webhook_secrets() == ("hush",)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".ptq.toml.") and path != notes.path]


def test_the_manifest_is_app_yml_with_our_addresses() -> None:
    place = Place(app_name="ptq of octo", public_url="https://ptq.example", organization="octo")
    made, ours = json.loads(make_manifest(place, "http://127.0.0.1:5")), load_manifest()
    assert made["default_permissions"] == dict(ours.permissions)
    assert (made["default_events"], made["public"]) == (list(ours.events), False)
    assert made["redirect_url"] == "http://127.0.0.1:5/github/created"
    assert made["callback_urls"] == [f"{place.public_url}/sign-in/callback"]
    assert made["hook_attributes"] == {"url": "https://ptq.example/webhook", "active": True}
    assert find_form_address(place, "a b") == "https://github.com/organizations/octo/settings/apps/new?state=a+b"


def test_every_permission_and_event_is_shown_with_its_own_reason() -> None:
    manifest, reasons = load_manifest(), read_reasons()
    wanted = {*(f"{name}: {level}" for name, level in manifest.permissions.items()), *manifest.events}
    assert reasons.keys() == wanted
    assert reasons["issues"] != reasons["issues: write"]


@pytest.mark.parametrize(
    ("web_url", "api_url"),
    [
        ("https://github.com", "https://api.github.com"),
        ("https://octo.ghe.com", "https://api.octo.ghe.com"),
        ("https://github.example.org", "https://github.example.org/api/v3"),
    ],
)
def test_the_api_url_follows_from_the_web_url(web_url: str, api_url: str) -> None:
    place = steps.set_place(Answers(), {**PLACE, "web_url": f"{web_url}/"}).place
    assert (place.web_url, place.api_url, place.public_url) == (web_url, api_url, "https://ptq.example/x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"web_url": "github.com"}, "like https://github.com"),
        ({"web_url": "https://github.com/octo"}, "nothing after the host"),
        ({"public_url": "ptq"}, "This must be an http"),
        ({"public_url": "http://127.0.0.1:8080"}, "a forwarder's address"),
        ({"webhook_url": "http://localhost:1/x"}, "only this computer can"),
        ({"port": "no"}, "The port is a number"),
        ({"port": "70000"}, "This .*65535"),
        ({"app_name": "x" * 35}, "1 to 34 characters"),
        ({"organization": "a/b"}, "letters, digits and hyphens"),
        ({"ca_file": "ca.pem"}, "the absolute path"),
    ],
)
def test_an_invalid_address_is_explained(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        steps.set_place(Answers(), {**PLACE, **changes})
    assert caught.value.field in {*changes, "webhook_url"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": "gpu-1"}, "Include the user name"),
        ({"address": "ptq@gpu 1"}, "like ptq@gpu-1"),
        ({"address": "ptq@gpu-1:99999"}, "like ptq@gpu-1"),
        ({"address": "-oProxyCommand=x@y"}, "like ptq@gpu-1"),
        ({"name": "a b"}, "This may contain only"),
        ({"name": "old"}, "already a machine old"),
        ({"slots": "0"}, "This .*greater than"),
        ({"workspace": "ptq"}, "absolute path"),
    ],
)
def test_an_invalid_machine_is_explained(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        steps.connect_machine(Answers(machines=(MachineAnswer("old"),)), {**MACHINE, **changes})
    assert [caught.value.field] == [*changes]


def test_a_changed_machine_takes_the_place_of_the_old_one_once_it_has_passed_its_test() -> None:
    before = Answers(machines=(MachineAnswer("a"), MachineAnswer("gpu-2", host="old", user="ptq"), MachineAnswer("c")))
    form = steps.describe_machine(replace(before.machines[1], replaces="gpu-2"))
    form |= {"address": "ptq@gpu-1:2222", "name": "gpu-1", "slots": "4"}
    looked = steps.connect_machine(before, form)
    assert looked.machines == before.machines, "until then it stays"
    assert looked.looked_at
    kept = steps.keep_machine(looked, looked.looked_at)
    assert [(machine.name, machine.host, machine.port, machine.slots) for machine in kept.machines] == [
        ("a", "", 22, 1),
        ("gpu-1", "gpu-1", 2222, 4),
        ("c", "", 22, 1),
    ]
    assert steps.describe_machine(kept.machines[1])["address"] == "ptq@gpu-1:2222"
    with pytest.raises(InvalidInput, match="already a machine c"):
        steps.connect_machine(before, {**form, "name": "c"})


def test_known_hosts_contain_an_unusual_port() -> None:
    machine = steps.connect_machine(Answers(), MACHINE).looked_at
    assert machine is not None
    assert replace(machine, host_key="k v").known_hosts_line == "[10.0.0.5]:2222 k v\n"
    assert replace(machine, host_key="k v", port=22).known_hosts_line == "10.0.0.5 k v\n"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"name": "a b", "kind": "claude"}, "An agent's name"),
        ({"name": "a", "kind": "command"}, "Enter the program that works"),
        ({"name": "a", "kind": "command", "command": "'x"}, "an unclosed quote"),
        ({"name": "a", "kind": "command", "command": "x", "key": "hush"}, "Enter the API base URL"),
        ({"name": "a", "kind": "pi", "key": "hush", "gateway_url": "https://x.example"}, "provider/model"),
        ({"name": "a", "kind": "other"}, "This must be one of"),
        ({"name": "old", "kind": "claude"}, "already an agent old"),
    ],
)
def test_an_invalid_agent_is_explained_without_its_key(form: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        steps.add_agent(Answers(agents=(AgentAnswer("old", "claude"),)), form)
    assert "hush" not in str(caught.value)
    assert caught.value.field in {"name", "kind", "command", "gateway_url", "model"}


def test_the_caps_are_the_defaults_unless_others_are_entered(tmp_path: Path) -> None:
    answers = complete()
    assert answers.caps == CapsAnswer("10", "50", "500")
    by_default = load_settings(write(tmp_path, answers))
    assert by_default.caps == CapsTables(), "an agent whose cost is unknown may work"
    entered = {"job_usd": " $2.50 ", "user_day_usd": "Unlimited", "repository_month_usd": "500.00"}
    answers = steps.set_caps(complete(agents=(AgentAnswer("a", "claude"),)), entered)
    (rules,) = load_settings(write(tmp_path, answers)).repository_rules()
    assert rules.caps[Scope.JOB] == Caps(cost_usd=2.5)
    assert rules.caps[Scope.USER_DAY] == Caps()
    assert rules.caps[Scope.REPOSITORY_MONTH] == DEFAULT_CAPS[Scope.REPOSITORY_MONTH]
    assert steps.set_caps(answers, {}) == answers


@pytest.mark.parametrize("amount", ["", "0", "-1", "ten", "1e3", "inf", "１"])
def test_an_amount_that_is_none_is_explained(amount: str) -> None:
    with pytest.raises(InvalidInput, match=r"such as 10 or 2\.50"):
        steps.set_caps(Answers(), {"job_usd": amount})


def test_the_owner_of_the_app_is_operator_unless_others_are_entered(tmp_path: Path) -> None:
    answers = complete(app=replace(APP, owner="octocat"))
    assert load_settings(write(tmp_path, steps.set_operators(answers, {}))).dashboard.operators == {"octocat"}
    others = steps.set_operators(answers, {"operators": " @hubot, mona "})
    assert load_settings(write(tmp_path, others)).dashboard.operators == {"hubot", "mona"}
    for app, text, words in (
        (APP, None, "Enter your GitHub login"),  # An organization owns it.
        (answers.app, " ", "Enter your GitHub login"),
        (answers.app, "a b@c", "b@c is not a GitHub login"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            steps.set_operators(complete(app=app), {} if text is None else {"operators": text})
        assert caught.value.field == "operators"
    assert steps.set_operators(complete(app=replace(APP, client_id="")), {}).operators == (), "nobody can sign in"


def test_caps_of_the_command_line_are_filled_in_over_saved_ones(tmp_path: Path) -> None:
    SetupFiles(tmp_path / "ptq.toml").save(Answers(caps=CapsAnswer("7", "8", "9")))
    assert Setup(tmp_path / "ptq.toml", caps={"job_usd": "20"}).state.answers.caps == CapsAnswer("20", "8", "9")
    refused = program.run("setup", "--config", tmp_path / "ptq.toml", "--user-day-usd", "ten")
    assert (refused.returncode, "such as 10 or 2.50" in refused.stderr) == (2, True)


def test_a_key_goes_to_the_vendor_and_cursors_key_to_the_machine() -> None:
    answers = steps.add_agent(Answers(), {"name": "a", "kind": "claude", "key": "k"})
    answers = steps.add_agent(answers, {"name": "b", "kind": "cursor", "key": "k", "gateway_url": "https://x.example"})
    assert [agent.gateway_url for agent in answers.agents] == ["https://api.anthropic.com", ""]
    text = render_config(complete(agents=answers.agents))
    assert tomllib.loads(text)["agents"]["b"]["env"] == {"CURSOR_API_KEY": "k"}


def test_an_app_registered_by_hand_needs_a_valid_key() -> None:
    form = {"app_id": "7", "webhook_secret": "s", "private_key": app_key_pem()}
    assert steps.set_known_app(Answers(), form).app == App("7", "", "", app_key_pem().strip(), "s")
    wrong = (("private_key", "no", "RSA key in PEM"), ("app_id", "x", "number"), ("webhook_secret", "", "is required"))
    for name, text, words in wrong:
        with pytest.raises(InvalidInput, match=words):
            steps.set_known_app(Answers(), {**form, name: text})


def test_set_up_continues_with_the_first_incomplete_step() -> None:
    assert find_next(Answers()) == "app"
    assert find_next(complete(machines=())) == "machines"
    assert find_next(complete()) == "finish"
