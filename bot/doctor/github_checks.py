"""Checks the App, its webhook, and each repository on GitHub. The judgements are pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import yaml

from bot.config.manifest import Manifest, load_manifest
from bot.config.settings import Settings
from bot.doctor.cap_checks import check_caps
from bot.doctor.delivery_checks import check_deliveries
from bot.doctor.findings import Cause, Finding, Part
from bot.github import AppGitHub
from bot.github.inspection import AppFacts, HookFacts, Inspection, InstallationFacts, RepositoryFacts
from bot.github.limits import Left
from bot.github.session import describe_failure
from bot.github.transport import Unauthorized
from handlers.commands.own_rules import PATH as OWN_RULES
from handlers.commands.own_rules import apply_own
from handlers.jobs.history import is_on_branch
from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled
from handlers.rules import RepositoryRules
from runner.model.machines import eligible, needs

APP = Part("GitHub App")
LEVELS = ("none", "read", "write", "admin")

MAX_SKEW_S = 30.0
"""GitHub accepts tokens that were signed up to a minute in its future. The warning begins at half of that."""

ENOUGH_LEFT = 0.1
"""The doctor warns if less than this share of the hour's calls is left."""

MAX_WORKFLOWS = 20
"""The most workflows of a repository that are read."""

OUR_BRANCHES = ("ptq/issue-1-0123456789", "ptq/task-0123456789")
"""Examples of the branches that notes create."""

MAX_WILDCARDS = 4
"""A pattern with more of them counts as one that matches: each multiplies the time that a comparison may take."""

_HAS_POWER = re.compile(rb"\bsecrets\s*[.\[]|\bsecrets:\s*inherit|:\s*[\"']?write(?:-all)?\b")
"""Gives a workflow secrets, or a token with write permission."""

TROUBLES = (GitHubError, GitHubUnavailable)
LATER = "try again in some minutes; https://www.githubstatus.com lists outages"

NO_ACCESS = tuple(Cause(APP.about, check) for check in ("reachable", "clock", "key"))
"""Without these nothing can be asked about a repository."""


async def check_app(inspection: Inspection, settings: Settings) -> AsyncIterator[Finding]:
    """Check the App and its webhook. Ends early if GitHub does not accept the App's key."""
    try:
        skew_s = await inspection.measure_skew_s()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        words = f"GitHub does not answer at {settings.github.api_url} ({describe_failure(error)})"
        yield APP.fail("reachable", words, _choose_way(settings, error))
        return
    yield judge_skew(APP, "GitHub", "this host", skew_s)
    try:
        app = await inspection.fetch_app()
    except TROUBLES as error:
        yield _explain_refused(error)
        return
    yield APP.ok("key", f"App {app.slug} ({app.id})")
    for finding in judge_app(app, load_manifest()):
        yield finding
    try:
        for finding in judge_hook(await inspection.fetch_hook(), settings.server.delivery_url()):
            yield finding
        yield await check_deliveries(APP, inspection, settings)
    except TROUBLES as error:
        yield APP.fail("webhook", f"could not be checked: {error}", LATER)


def _choose_way(settings: Settings, error: Exception) -> str:
    """What to do if GitHub cannot be reached."""
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        return "correct [proxy] url and its credentials, or start the proxy"
    url = settings.github.api_url
    return f"make `curl {url}` work on this host, or correct [github] api_url (Enterprise Server: .../api/v3)"


def _explain_refused(error: Exception) -> Finding:
    if isinstance(error, Unauthorized):
        fix = "create a new private key in the App's settings, and set [github] private_key_file to its file"
        # GitHub also rejects tokens with a wrong time.
        return APP.fail("key", "GitHub rejected the private key for this App ID", fix, Cause(APP.about, "clock"))
    if isinstance(error, NotFound):
        return APP.fail(
            "key", "GitHub has no App with this App ID", "set [github] app_id to the ID in the App's settings"
        )
    return APP.fail("key", f"GitHub could not be asked: {error}", LATER, Cause(APP.about, "clock"))


def judge_skew(part: Part, other: str, wrong: str, skew_s: float | None) -> Finding:
    """Compare our clock with another one. If they differ, the clock of the `wrong` host is wrong."""
    if skew_s is None:
        return part.ok("clock", "the other side did not send its time")
    if abs(skew_s) <= MAX_SKEW_S:
        return part.ok("clock", "in sync")
    way = "ahead of" if skew_s > 0 else "behind"
    fix = f"synchronize the clock of {wrong} with NTP (timedatectl set-ntp true)"
    causes = () if part is APP else (Cause(APP.about, "clock"),)
    return part.fail("clock", f"{abs(skew_s):,.0f} s {way} {other}", fix, *causes)


def judge_app(app: AppFacts, manifest: Manifest) -> Iterator[Finding]:
    """Compare permissions and events with `app.yml`."""
    missing = list(list_missing(app.permissions, manifest.permissions))
    more = [
        f"{name}: {level}"
        for name, level in sorted(app.permissions.items())
        if LEVELS.index(level) > LEVELS.index(manifest.permissions.get(name, "none"))
    ]
    if missing:
        fix = "grant them under Permissions in the App's settings, and accept them in each installation"
        yield APP.fail("permissions", f"missing: {', '.join(missing)}", fix)
    elif more:
        fix = "remove them under Permissions in the App's settings, so that nobody can misuse them"
        yield APP.warn("permissions", f"not needed: {', '.join(more)}", fix)
    else:
        yield APP.ok("permissions", "as in app.yml")
    if unheard := sorted(set(manifest.events) - app.events):
        yield APP.fail(
            "events",
            f"not subscribed: {', '.join(unheard)}",
            "subscribe to them under Permissions in the App's settings",
        )
    else:
        yield APP.ok("events", "as in app.yml")


def list_missing(has: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """The permissions that are wanted but not granted, such as `issues: write`."""
    for name, level in sorted(wanted.items()):
        if LEVELS.index(has.get(name, "none")) < LEVELS.index(level):
            yield f"{name}: {level}"


def judge_hook(hook: HookFacts, url: str) -> Iterator[Finding]:
    """Check the address, secret, format and TLS of the webhook."""
    place = "in the App's settings, under Webhook"
    if hook.url.rstrip("/") != url:
        words = f"GitHub sends deliveries to {hook.url or 'nobody'}, but the service is at {url}"
        fix = f"set the service's address {place}; if it is wrong, correct [server] public_url or webhook_url"
        yield APP.fail("webhook", words, fix)
    elif not hook.has_secret:
        yield APP.fail("webhook", "no secret, so deliveries are refused", f"set one of webhook_secrets {place}")
    elif hook.content_type != "json":
        yield APP.fail("webhook", "sends forms instead of JSON", f"choose application/json {place}")
    elif hook.insecure:
        words = "GitHub does not verify the service's certificate, so deliveries can be intercepted"
        yield APP.warn("webhook", words, f"enable SSL verification {place}")
    else:
        yield APP.ok("webhook", url)


async def check_repository(
    inspection: Inspection, github: AppGitHub, settings: Settings, name: str, known: Mapping[str, int]
) -> AsyncIterator[Finding]:
    """Check one configured repository. `known` has the numbers of those that the service knows, by name."""
    part = Part(f"repository {name}")
    rules = next(rules for rules in settings.repository_rules() if rules.name == name)
    for finding in check_caps(part, settings, rules):
        yield finding
    try:
        installation = await inspection.fetch_installation(name)
        if failure := judge_installation(part, installation, load_manifest()):
            yield failure
            return
        facts = await _fetch_known(inspection, name)
        if (facts is None or facts.name.lower() != name.lower()) and (
            namesake := await _find_namesake(part, inspection, name, known)
        ):
            yield namesake
            return
        facts = facts or await inspection.fetch_repository(name)
        yield part.ok("installed", "yes")
        if facts.name.lower() != name.lower():
            words = f"it is called {facts.name} on GitHub by now, so its events start nothing"
            yield part.fail("name", words, f'write [repos."{facts.name}"] in ptq.toml')
        yield judge_left(part, inspection.list_left(name))
        for finding in judge_repository(part, facts, settings, rules):
            yield finding
        yield await _check_branch(part, github, rules, facts)
        if rules.environment_branch:
            yield await _check_environment_branch(part, github, rules, facts)
        yield await _check_graphql(part, inspection, settings, name)
        async for finding in _check_triggers(part, inspection, github, settings, rules, facts):
            yield finding
        if rules.push_to:
            yield await _check_fork(part, inspection, rules.push_to, known)
        elif not facts.private:
            yield await _check_workflows(part, inspection, github, name, facts.default_branch)
    except NotFound:
        fix = "install it there (App's settings, Install App), or fix the repository's name in ptq.toml"
        words = "the App is not installed there, or the repository does not exist"
        yield part.fail("installed", words, fix, *NO_ACCESS)
    except TROUBLES as error:
        left = inspection.list_left(name)
        if any(one.calls == 0 for one in left):
            yield judge_left(part, left)
        causes = (*NO_ACCESS, Cause(part.about, "rate limit"))
        yield part.fail("reachable", f"could not be checked: {error}", LATER, *causes)


def judge_installation(part: Part, installation: InstallationFacts, manifest: Manifest) -> Finding | None:
    """Why the App cannot work although it is installed."""
    if installation.suspended:
        return part.fail("installed", "the installation is suspended", "unsuspend the App in the account's settings")
    if missing := list(list_missing(installation.permissions, manifest.permissions)):
        fix = "accept the App's new permissions in the account's settings, under GitHub Apps"
        words = f"the installation does not grant {', '.join(missing)}"
        return part.fail("installed", words, fix, Cause(APP.about, "permissions"))
    return None


def judge_left(part: Part, said: Sequence[Left]) -> Finding:
    """Check the remaining calls of this hour. Pure."""
    if not said:  # As on an Enterprise Server without rate limits.
        return part.ok("rate limit", "no rate limit reported")
    left = min(said, key=lambda one: one.calls)
    words = f"{left.calls:,} of {left.limit:,} calls left this hour"
    if left.calls >= left.limit * ENOUGH_LEFT:
        return part.ok("rate limit", words)
    fix = (
        "wait an hour; if it happens again, use fewer replicas and repositories for one account, or ask GitHub for more"
    )
    return part.warn("rate limit", words, fix) if left.calls else part.fail("rate limit", words, fix)


def judge_repository(
    part: Part, facts: RepositoryFacts, settings: Settings, rules: RepositoryRules
) -> Iterator[Finding]:
    """Check whether the repository can have jobs, and who can read them."""
    if facts.archived or not facts.has_issues:
        words = "the repository is archived" if facts.archived else "issues are disabled"
        yield part.fail("issues", words, "change that on GitHub, or remove the repository from ptq.toml")
    fitting = eligible(settings.machine_list(), rules.requires, private=facts.private)
    machines = [machine.name for machine in fitting]
    if machines:
        yield part.ok("machines", ", ".join(machines))
    else:
        fix = "give a machine the labels in `requires`, and this kind of repository in `serves`"
        wanted = needs(rules.requires, private=facts.private)
        yield part.fail("machines", f"no suitable machine: it needs {', '.join(wanted)}", fix)
    if facts.private and settings.dashboard.client_id is None:
        words = "private repository, but sign-in is not configured: nobody can see its jobs' pages"
        yield part.warn("pages", words, "set up [dashboard] for sign-in (docs/dashboard.md)")


async def _check_branch(part: Part, github: AppGitHub, rules: RepositoryRules, facts: RepositoryFacts) -> Finding:
    branch = rules.base_branch or facts.default_branch
    if await github.fetch_branch_sha(rules.name, branch) is None:
        return part.fail("base branch", f"there is no branch {branch}", "fix base_branch, or push a first commit")
    return part.ok("base branch", branch)


async def _check_environment_branch(
    part: Part, github: AppGitHub, rules: RepositoryRules, facts: RepositoryFacts
) -> Finding:
    """Check that jobs can begin from the branch for environments."""
    branch, base = rules.environment_branch or "", rules.base_branch or facts.default_branch
    commit = await github.fetch_branch_sha(rules.name, branch)
    if commit is None:
        return part.fail("environment branch", f"there is no branch {branch}", "fix environment_branch, or remove it")
    if not await is_on_branch(github, rules.name, base, commit):
        words = f"the newest commit of {branch} is not on {base}, so no job can begin"
        return part.fail("environment branch", words, f"fix environment_branch, or wait until {base} has that commit")
    return part.ok("environment branch", f"{branch}, at a commit of {base}")


async def _check_graphql(part: Part, inspection: Inspection, settings: Settings, name: str) -> Finding:
    try:
        await inspection.ask_graphql(name)
    except GitHubError as error:
        words = f"GitHub's GraphQL API refuses ptq-bot ({error.status}), so comments of earlier attempts stay unfolded"
        fix = f"allow requests to GitHub's GraphQL API, in the proxy or on the server behind {settings.github.api_url}"
        return part.warn("GraphQL", words, fix)
    return part.ok("GraphQL", "answers")


async def _check_triggers(
    part: Part,
    inspection: Inspection,
    github: AppGitHub,
    settings: Settings,
    rules: RepositoryRules,
    facts: RepositoryFacts,
) -> AsyncIterator[Finding]:
    """Check the repository's own rules, and the labels that start jobs."""
    content = await github.fetch_file(rules.name, OWN_RULES, facts.default_branch)
    if content is not None:
        rules = apply_own(rules, content, settings.preset_table())
        if rules.fault:
            fix = "fix the file on the default branch; no job starts until then (docs/commands.md)"
            yield part.fail("own rules", f"invalid {OWN_RULES}: {rules.fault}", fix)
            return
        yield part.ok("own rules", f"{OWN_RULES} adds restrictions")
    missing = [label for label in rules.labels if not await inspection.has_label(rules.name, label)]
    yield judge_labels(part, facts.page, list(rules.labels), missing)


def name_label_command(page: str, label: str) -> str:
    """The command that creates a label in the repository at this address. Pure."""
    return f"gh label create {shlex.quote(label)} -R {shlex.quote(page)}"


def judge_labels(part: Part, page: str, labels: Sequence[str], missing: Sequence[str]) -> Finding:
    """Check whether a repository has the labels that start jobs; `page` is its address. Pure."""
    if not missing:
        return part.ok("labels", ", ".join(labels) or "no label starts jobs; commands do")
    commands = "; ".join(name_label_command(page, label) for label in missing)
    words = f"no label {', '.join(missing)} on GitHub, so it cannot start jobs"
    return part.warn(
        "labels", words, f"create {'it' if len(missing) == 1 else 'them'} at {page}/labels, or with: {commands}"
    )


async def _fetch_known(inspection: Inspection, name: str) -> RepositoryFacts | None:
    """The repository that the service knows by this name; None if GitHub has it no more, or not for the App."""
    try:
        return await inspection.fetch_repository(name)
    except (NotFound, NotInstalled):
        return None


async def _find_namesake(
    part: Part, inspection: Inspection, name: str, known: Mapping[str, int], check: str = "name"
) -> Finding | None:
    """Another repository than the known one that has this name now."""
    number = known.get(name.lower())
    if number is None or (other := await inspection.find_number(name)) == number:
        return None
    words = f"another repository is called {name} by now: GitHub's id of it is {other}, not {number}. It gets no jobs"
    fix = (
        "if the known one was renamed or transferred, write its new name in ptq.toml; "
        f"if this one replaces it: ptq-bot repositories accept {name}"
    )
    return part.fail(check, words, fix)


async def _check_fork(part: Part, inspection: Inspection, fork: str, known: Mapping[str, int]) -> Finding:
    try:
        await inspection.fetch_installation(fork)
    except NotFound:
        return part.fail("push_to", f"the App is not installed in {fork}", "install it in the fork, too")
    return await _find_namesake(part, inspection, fork, known, "push_to") or part.ok("push_to", fork)


async def _check_workflows(part: Part, inspection: Inspection, github: AppGitHub, name: str, branch: str) -> Finding:
    """Check whether workflows run the bot's branches with secrets, before anybody has reviewed them."""
    paths = await inspection.list_workflows(name, branch)
    open_ones = [
        path.rpartition("/")[2]
        for path in paths[:MAX_WORKFLOWS]
        if runs_our_branches(await github.fetch_file(name, path, branch) or b"")
    ]
    if not open_ones:
        return part.ok("CI secrets", "no workflow exposes secrets to bot branches")
    words = f"{', '.join(open_ones)} run every pushed branch with secrets, and so run agents' code before a review"
    return part.warn("CI secrets", words, 'set push_to = "owner/fork", or restrict the branches of `on: push`')


def runs_our_branches(workflow: bytes) -> bool:
    """Whether pushing a bot branch runs a workflow that has secrets or a token with write permission. Pure.

    https://docs.github.com/actions/reference/workflow-syntax-for-github-actions#onpushbranchestagsbranches-ignoretags-ignore
    """
    try:
        found = yaml.safe_load(workflow)
    except (yaml.YAMLError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    # YAML 1.1 parses the key `on` as true.
    on = found.get("on", found.get(True))
    if isinstance(on, dict) and "push" in on:
        runs = any(_takes_branch(on["push"] or {}, branch) for branch in OUR_BRANCHES)
    else:
        runs = on == "push" or (isinstance(on, list) and "push" in on)
    return runs and _HAS_POWER.search(workflow) is not None


def _takes_branch(push: Any, branch: str) -> bool:
    if not isinstance(push, dict):
        return False
    if isinstance(names := push.get("branches"), list):
        taken = False
        for name in (name for name in names if isinstance(name, str)):  # The last match decides.
            taken = not name.startswith("!") if _fits(name.removeprefix("!"), branch) else taken
        return taken
    if isinstance(names := push.get("branches-ignore"), list):
        return not any(isinstance(name, str) and _fits(name, branch) for name in names)
    # If only tags are listed, branches do not run.
    return not ({"tags", "tags-ignore"} & push.keys())


def _fits(name: str, branch: str) -> bool:
    """Whether a pattern with GitHub's wildcards matches a bot branch: `*` stops at slashes, `**` does not."""
    parts = re.split(r"(\*+)", name)
    if len(parts) // 2 > MAX_WILDCARDS:
        return True
    wild = {part: "[^/]*" if part == "*" else ".*" for part in parts[1::2]}
    return re.fullmatch("".join(wild.get(part) or re.escape(part) for part in parts), branch) is not None
