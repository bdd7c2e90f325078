"""The set-up pages: who can use them, and how they show failures."""

from __future__ import annotations

import asyncio
import html
import os
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from bot.demo.repository import NAME
from bot.demo.sshd import DEFAULT_PATH
from bot.demo.tryout import Tryout
from bot.setup import steps
from bot.setup.answers import AgentAnswer, Answers, MachineAnswer
from bot.setup.checks import require_models
from bot.setup.documents import link_documents
from bot.setup.steps import InvalidInput
from tests.support.doctor_models import make_models
from tests.support.gate import Gate
from tests.support.installer import Operator, Seen, make_no_pip, open_setup
from tests.support.openapi import load_openapi


@pytest.fixture
async def tryout(tmp_path: Path) -> AsyncIterator[Tryout]:
    async with Tryout(tmp_path / "tryout", f"{make_no_pip(tmp_path / 'programs')}:{DEFAULT_PATH}") as tryout:
        tryout.github.observers.append(load_openapi().check)
        yield tryout
        assert tryout.github.complaints == []


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    async with open_setup(tmp_path / "here") as operator:
        yield operator


def find_wrong(seen: Seen) -> list[str]:
    """The fields that the page marks as wrong, each with its reason next to it."""
    inputs = re.findall(r'<(?:input|textarea)[^>]* name="([^"]+)"[^>]* aria-invalid="true"', seen.html)
    assert all(f'id="error-{name}"' in seen.html for name in inputs), seen.text
    return inputs


def read_entries(seen: Seen) -> dict[str, str]:
    """What stands in the form for a machine."""
    form = seen.html.partition('action="/machines/look">')[2].partition("</form>")[0]
    return {name: html.unescape(text) for name, text in re.findall(r'name="(\w+)" value="([^"]*)"', form)}


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_the_token_lets_in_one_browser_once(tmp_path: Path) -> None:
    async with open_setup(tmp_path, inside=False) as operator:
        for path in ("/app", "/", "/finish"):
            assert (await operator.open(path)).status == 403
        wrong = await operator.open("/?token=wrong")
        assert (wrong.status, "Wrong token" in wrong.text) == (403, True)
        seen = await operator.open(operator.address)
        assert (seen.status, urlsplit(seen.url).path, urlsplit(seen.url).query) == (200, "/app", "")
        (cookie,) = operator.session.cookie_jar
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
        assert (await operator.open(operator.address)).status == 200, (
            "a browser with a session may open the address again"
        )
        operator.session.cookie_jar.clear()
        again = await operator.open(operator.address)
        assert (again.status, "already used this address" in again.text) == (403, True)


async def test_lone_surrogates_do_not_sign_in(tmp_path: Path) -> None:
    async with open_setup(tmp_path, inside=False) as operator:
        port = urlsplit(operator.url).port
        for headers, query in (({}, "?token=%ED%A0%80"), ({"Cookie": f"ptq_setup_{port}=\udcff"}, "")):
            sent = f"GET /{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
            sent += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent.encode(errors="surrogateescape") + b"\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
            writer.close()


async def test_a_form_that_cannot_be_read_is_refused(operator: Operator) -> None:
    for charset, body, status in (
        ("punycode", b"csrf=1", 415),
        ("utf-8", b"\xff", 400),
        ("utf-8", b"a" * 300_000, 413),
    ):
        headers = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
        async with operator.session.post(f"{operator.url}/app/place", data=body, headers=headers) as answer:
            assert (answer.status, "cannot be read" in await answer.text()) == (status, True)


async def test_a_browser_without_a_session_gets_only_style_sheets(tmp_path: Path) -> None:
    async with open_setup(tmp_path, inside=False) as operator:
        assert (await operator.open("/static/style.css")).status == 200
        assert (await operator.post("/static/style.css")).status == 403, "a form is not read without a session"


async def test_the_documents_that_a_page_names_are_links_that_open(operator: Operator) -> None:
    page = await operator.open("/app")
    assert re.search(r"docs/[a-z-]+\.md", page.text)
    links = re.findall(r'<a href="(/docs/[a-z-]+\.md)" target="_blank">docs/', page.html)
    assert len(links) == len(re.findall(r"docs/[a-z-]+\.md", page.text))
    document = await operator.open(links[0])
    assert (document.status, document.html.startswith("# ")) == (200, True)
    assert document.headers["Content-Type"] == "text/plain; charset=utf-8"
    for name in ("setup", "..%2fREADME.md", "nothing.md"):
        assert (await operator.open(f"/docs/{name}")).status == 404


def test_only_documents_that_exist_become_links() -> None:
    assert link_documents("<b> docs/nothing.md, xdocs/faq.md, a/docs/faq.md") == (
        "&lt;b&gt; docs/nothing.md, xdocs/faq.md, a/docs/faq.md"
    )


async def test_another_host_name_is_refused(operator: Operator) -> None:
    port = urlsplit(operator.url).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{int(port or 0) + 1}"):
        seen = await operator.open("/app", Host=host)
        assert (seen.status, "csrf" in seen.html) == (421, False), host


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ({"Origin": "https://evil.example"}, {}),
        ({"Origin": "null"}, {}),
        ({}, {"csrf": "guessed"}),
        ({}, {"csrf": ""}),
    ],
)
async def test_a_form_from_another_site_is_refused(
    operator: Operator, headers: dict[str, str], form: dict[str, str]
) -> None:
    place = {"web_url": "https://evil.example", "app_name": "x", "public_url": "https://x.example", "port": "1"}
    assert (await operator.post("/app/place", {**place, **form}, **headers)).status == 403
    assert operator.setup.state.answers.place.web_url == "https://github.com"


async def test_pages_run_no_scripts_and_send_forms_only_to_us_and_github(operator: Operator) -> None:
    seen = await operator.open("/app")
    policy = seen.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "form-action 'self' https://github.com;" in policy
    assert (seen.headers["Cache-Control"], seen.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert "<script" not in seen.html
    assert (await operator.open("/static/setup.css")).status == 200
    assert (await operator.open("/static/..%2fcli.py")).status == 404


async def test_an_app_is_created_once_and_its_secrets_are_private(
    tryout: Tryout, operator: Operator, tmp_path: Path
) -> None:
    form = await operator.find_creation(tryout.github.url)
    wrong = await operator.open("/github/created?code=abc&state=wrong")
    assert (wrong.status, operator.setup.state.answers.app) == (403, None)
    made = await operator.post(f"{tryout.github.url}/settings/apps/manifest", form)
    app = operator.setup.state.answers.app
    assert app is not None
    assert (made.status, urlsplit(made.url).path) == (200, "/app")
    assert f"ptq-bot (ID {app.id})" in made.text
    for secret in (app.webhook_secret, app.client_secret, "PRIVATE KEY"):
        assert secret not in made.html
    assert (tmp_path / "here" / app.key_file).read_text() == app.private_key
    assert modes(tmp_path / "here") == {0o600}
    replayed = await operator.open(f"/github/created?code=abc&state={form['state']}")
    assert (replayed.status, operator.setup.state.answers.app) == (403, app)


async def test_a_missing_page_links_back_to_set_up_if_signed_in(operator: Operator) -> None:
    for path, status in (("/nothing", 404), ("/static/none.css", 404), ("/github/created?code=abc&state=wrong", 403)):
        seen = await operator.open(path)
        assert (seen.status, "Back to set-up" in seen.text) == (status, True), path
    operator.session.cookie_jar.clear()
    assert "Back to set-up" not in (await operator.open("/app")).text


async def test_an_unknown_code_is_explained_and_another_try_works(tryout: Tryout, operator: Operator) -> None:
    state = (await operator.find_creation(tryout.github.url))["state"]
    assert not operator.setup.state.accept_oauth_state("\udcff"), "a byte that is not UTF-8"
    seen = await operator.open(f"/github/created?code=abc&state={state}")
    assert "GitHub does not know this code" in seen.text
    again = parse_qs(urlsplit(operator.setup.state.describe_app_form()["address"]).query)["state"]
    assert again != [state]
    assert "App created" in (await operator.create_app(tryout.github.url)).text


async def test_an_unreachable_github_is_explained(operator: Operator) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = {"app_name": "x", "public_url": "http://127.0.0.1:1", "port": "1"}
        place["web_url"] = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        refused = await operator.post("/app/place", place)
        assert "does not answer (Connection refused)" in refused.text
        assert find_wrong(refused) == ["web_url"]
        missing = await operator.post("/app/place", {**place, "ca_file": "/nowhere/ca.pem"})
        assert ("/nowhere/ca.pem" in missing.text, find_wrong(missing)) == (True, ["ca_file"])
        operator.setup.state.save(steps.set_place(operator.setup.state.answers, place))
        state = parse_qs(urlsplit(operator.setup.state.describe_app_form()["address"]).query)["state"][0]
        assert "GitHub did not answer" in (await operator.open(f"/github/created?code=abc&state={state}")).text


@pytest.mark.slow
async def test_an_app_registered_by_hand_is_accepted_if_github_knows_it(tryout: Tryout, operator: Operator) -> None:
    await operator.create_app(tryout.github.url)
    app = operator.setup.state.answers.app
    assert app is not None
    await operator.post("/app/forget")
    form = {"app_id": app.id, "private_key": app.private_key, "webhook_secret": app.webhook_secret}
    wrong = await operator.post("/app/known", {**form, "app_id": "7"})
    assert "GitHub rejected this key for App ID 7" in wrong.text
    assert app.webhook_secret not in wrong.html
    await operator.post("/app/known", form)
    taken = operator.setup.state.answers.app
    assert taken is not None
    assert (taken.slug, taken.html_url) == (app.slug, app.html_url)


async def test_a_repository_without_the_app_is_refused(tryout: Tryout, operator: Operator) -> None:
    await operator.create_app(tryout.github.url)
    assert "not installed on any repository yet" in (await operator.open("/repositories")).text
    refused = await operator.post("/repositories", {"repository": NAME, "diagnose_label": "ptq", "fix_label": ""})
    assert "not installed in octo/widgets" in refused.text
    await operator.choose_repository(tryout.github.url)
    (kept,) = operator.setup.state.answers.repositories
    assert (kept.name, kept.private, kept.tests) == (NAME, False, "python -m unittest")


async def test_a_host_key_that_changed_before_the_confirmation_is_shown_again(
    tryout: Tryout, operator: Operator, tmp_path: Path
) -> None:
    looked = await operator.look_at(tryout)
    await tryout.ssh.stop()
    (tmp_path / "tryout" / "machine" / "ssh" / "host_key").unlink()
    kept_client_key = tryout.ssh.client_key_file.read_bytes()
    await tryout.ssh.start()
    tryout.ssh.client_key_file.write_bytes(kept_client_key)
    changed = await operator.post("/machines/confirm", {"host_key": looked.hidden("host_key")})
    assert "is no longer the one that you confirmed" in changed.text
    assert changed.hidden("host_key") != looked.hidden("host_key")
    assert operator.setup.state.answers.machines == ()
    assert not tryout.workspace.exists(), "nothing was sent there"
    forged = await operator.post("/machines/confirm", {"host_key": "ssh-ed25519 AAAA"})
    assert "is no longer the one that you confirmed" in forged.text
    assert operator.setup.state.answers.machines == ()


@pytest.mark.slow
async def test_a_machine_that_does_not_answer_is_explained_and_the_input_stays(
    tryout: Tryout, operator: Operator
) -> None:
    with socket.socket() as deaf:  # It listens, and says nothing.
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"ptq@127.0.0.1:{deaf.getsockname()[1]}"
        seen = await operator.look_at(tryout, address=address)
    assert "Cannot connect to machine-1: it did not answer" in seen.text
    assert address in seen.html
    await tryout.ssh.stop()
    assert "connection refused" in (await operator.look_at(tryout)).text
    assert operator.setup.state.answers.machines == ()


async def test_another_form_that_comes_meanwhile_is_shown_again(tryout: Tryout, operator: Operator) -> None:
    async with Gate(tryout.ssh.port) as gate:
        address = f"{tryout.ssh.user}@127.0.0.1:{gate.port}"
        await operator.send_machine(tryout, address=address)
        passing = await gate.meet()
        meanwhile = await operator.send_machine(tryout, address="ptq@gpu-2", name="gpu-2")
        assert (gate.arrived, "Send it again" in meanwhile.text) == (1, True)
        passing.set()
        seen = await operator.follow(meanwhile)
    assert "Send it again" in seen.text
    assert (read_entries(seen)["address"], read_entries(seen)["name"]) == ("ptq@gpu-2", "gpu-2")
    assert operator.setup.state.answers.looked_at
    assert operator.setup.state.answers.looked_at.port == gate.port


async def test_a_change_that_is_discarded_leaves_the_machine_as_it_was(tryout: Tryout, operator: Operator) -> None:
    state = operator.setup.state
    state.save(replace(state.answers, machines=(MachineAnswer("machine-1", "/srv/ptq", host="gpu-1", user="ptq"),)))
    looked = await operator.look_at(tryout, replaces="machine-1")
    assert read_entries(looked)["replaces"] == "machine-1"
    seen = await operator.post("/machines/discard")
    assert ("machine-1 ready" in seen.text, state.answers.looked_at) == (True, None)


@pytest.mark.slow
async def test_this_host_can_be_a_machine(operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{make_no_pip(tmp_path / 'programs')}:{os.environ['PATH']}")
    form = {"kind": "local", "name": "here", "workspace": str(tmp_path / "ptq"), "slots": "1"}
    assert "here ready" in (await operator.post("/machines/look", form)).text
    await operator.post("/machines/drop", {"name": "here"})
    assert operator.setup.state.answers.machines == ()


@pytest.mark.slow
async def test_a_field_is_marked_with_its_reason_in_words(operator: Operator) -> None:
    seen = await operator.post("/machines/look", {"kind": "local", "name": "here", "workspace": "ptq", "slots": "1"})
    assert "This must be an absolute path on the machine." in seen.text
    assert 'id="error-local-workspace"' in seen.html
    assert seen.html.count('aria-invalid="true"') == 1
    assert "workspace:" not in seen.text, "no key of the configuration"
    assert "aria-invalid" not in (await operator.open("/machines")).html


@pytest.mark.slow
async def test_a_key_file_is_checked_when_it_is_entered(tryout: Tryout, operator: Operator, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "hunter22", "-f", key], check=True)
    locked = await operator.look_at(tryout, client_key_file=str(key))
    assert f"remove the passphrase: ssh-keygen -p -N '' -f {key}" in locked.text
    assert find_wrong(locked) == ["client_key_file"]
    Path(tryout.ssh.client_key_file).chmod(0o644)
    assert "has mode 0644: every account on this host has access" in (await operator.look_at(tryout)).text


@pytest.mark.slow
async def test_an_agent_that_no_machine_has_is_added_only_if_one_insists(tryout: Tryout, operator: Operator) -> None:
    ssh, state = tryout.ssh, operator.setup.state
    known_hosts = Path(ssh.known_hosts_file).read_text().split()
    machine = MachineAnswer("machine-1", str(tryout.workspace), host="127.0.0.1", port=ssh.port, user=ssh.user)
    machine = replace(machine, client_key_file=str(ssh.client_key_file), host_key=" ".join(known_hosts[1:3]))
    state.save(replace(state.answers, machines=(machine,)))
    form = {"kind": "command", "name": "mine", "command": "/nowhere/agent"}
    at_once = await operator.send("/agents/add", form)
    assert "Asking machines for the program of mine, and its models for an answer. This page refreshes" in at_once.text
    seen = await operator.follow(at_once)
    assert "/nowhere/agent is not installed on machine-1. Install it there" in seen.text
    assert (find_wrong(seen), "Add it anyway" in seen.text) == (["command"], True)
    assert list(state.answers.agents) == []
    await operator.post("/agents/add", {**form, "anyway": "yes"})
    await operator.post("/agents/add", {**form, "name": "shell", "command": "sh"})
    assert [agent.name for agent in state.answers.agents] == ["mine", "shell"]


async def test_models_are_asked_before_an_agent_is_added() -> None:
    async with make_models() as models:
        for path, field in (("/200", ""), ("/401", "key"), ("/404", "gateway_url")):
            agent = AgentAnswer("a", "claude", gateway_url=str(models.make_url(path)), key="k3y-k3y-k3y")
            try:
                await require_models(Answers().place, agent)
                found = ""
            except InvalidInput as error:
                found = error.field
            assert found == field, path


async def test_text_from_a_machine_is_escaped(operator: Operator) -> None:
    state = operator.setup.state
    machine = MachineAnswer("m", "/<b>x</b>\u202e", "local", programs={"claude": "<script>"})
    state.answers = type(state.answers)(machines=(machine,))
    page = (await operator.open("/machines")).html
    assert "/&lt;b&gt;x&lt;/b&gt;⟨U+202E⟩" in page
    assert "found on m" in (await operator.open("/agents")).text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_read_only_folder_is_explained(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "here").chmod(0o500)
    seen = await operator.post("/agents/add", {"kind": "claude", "name": "a"})
    assert "Cannot write to" in seen.text


@pytest.mark.slow
async def test_a_failed_test_is_explained_at_the_entry_that_caused_it_and_made_again(
    tryout: Tryout, operator: Operator, tmp_path: Path
) -> None:
    looked = await operator.look_at(tryout, client_key_file="", workspace="/proc/ptq")
    own = (tmp_path / "here" / "ptq-machines-key").stat().st_mode & 0o777
    assert (own, "ssh-ed25519 AAAA" in looked.text) == (0o600, True)
    refused = await operator.post("/machines/confirm", {"host_key": looked.hidden("host_key")})
    assert "user name and key" in refused.text
    assert "authorized_keys" in refused.text
    assert find_wrong(refused) == [], "a new key has to be added on the machine"
    assert read_entries(refused)["address"] == f"{tryout.ssh.user}@127.0.0.1:{tryout.ssh.port}"
    public_key = operator.setup.state.files.find_client_key()
    (tmp_path / "tryout" / "machine" / "ssh" / "authorized_keys").write_text(f"{public_key}\n")
    await tryout.ssh.stop()
    await tryout.ssh.start()
    seen = await operator.post("/machines/confirm", {"host_key": refused.hidden("host_key")})
    assert find_wrong(seen) == ["workspace"], "the login works now"
    assert "To fix it: make /proc/ptq writable for the account" in seen.text
    assert {"name": "machine-1", "workspace": "/proc/ptq", "slots": "1"}.items() <= read_entries(seen).items()
    assert ("ok host key" in seen.text, "Test again" in seen.text) == (True, True), "what was found stays"
    key = tmp_path / "another"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    looked = await operator.look_at(tryout, client_key_file=str(key))
    seen = await operator.post("/machines/confirm", {"host_key": looked.hidden("host_key")})
    assert (find_wrong(seen), read_entries(seen)["client_key_file"]) == (["client_key_file"], str(key))


@pytest.mark.slow
async def test_a_changed_machine_is_tested_once_while_the_page_says_what_is_done(
    tryout: Tryout, operator: Operator
) -> None:
    state, ssh = operator.setup.state, tryout.ssh
    before = MachineAnswer("machine-1", "/srv/ptq", host="127.0.0.1", port=ssh.port, user=ssh.user)
    state.save(replace(state.answers, machines=(before,)))
    page = await operator.open("/machines?change=machine-1")
    assert f'value="{ssh.user}@127.0.0.1:{ssh.port}"' in page.html
    async with Gate(ssh.port) as gate:
        address = f"{ssh.user}@127.0.0.1:{gate.port}"
        form = {"address": address, "name": "gpu-1", "slots": "3", "replaces": page.hidden("replaces")}
        connecting = await operator.send_machine(tryout, **form)
        assert f"Connecting to {address}, to fetch its host key. This page refreshes" in connecting.text
        assert (connecting.headers["Refresh"], "/machines/look" in connecting.html) == ("2", False)
        passing = await gate.meet()
        await operator.send_machine(tryout, **form)
        assert (await operator.open("/machines")).headers["Refresh"] == "2"
        assert gate.arrived == 1, "neither the same form nor a reload connects again"
        passing.set()
        looked = await operator.follow(connecting)
        assert "machine-1 ready" in looked.text

        confirmed = {"host_key": looked.hidden("host_key")}
        seen = await operator.send("/machines/confirm", confirmed)
        steps_left = "Python, disk and GPUs, sandbox, git and agents, first job"
        assert f"Testing gpu-1: host key. Then: {steps_left}. This page" in seen.text
        (await gate.meet()).set()
        passing = await gate.meet()
        seen = await operator.send("/machines/confirm", confirmed)
        assert "ok host key" in seen.text
        assert f"Testing gpu-1: {steps_left.replace(',', '. Then:', 1)}. This page" in seen.text
        assert gate.arrived == 3, "one test"
        gate.is_open = True
        passing.set()
        seen = await operator.follow(seen)
        assert ("gpu-1 ready" in seen.text, "test job passed" in seen.text) == (True, True)
    assert [(one.name, one.slots, one.port) for one in state.answers.machines] == [("gpu-1", 3, gate.port)]
