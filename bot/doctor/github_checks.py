"""What the doctor asks of GitHub: the App, its webhook, and each repository. The judgements are pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import yaml

from bot.config.manifest import Manifest, load_manifest
from bot.config.settings import Settings
from bot.doctor.delivery_checks import check_deliveries
from bot.doctor.findings import Finding, Part
from bot.github import AppGitHub
from bot.github.inspection import AppFacts, HookFacts, Inspection, InstallationFacts, RepositoryFacts
from bot.github.limits import Left
from bot.github.session import describe_failure
from bot.github.transport import Unauthorized
from handlers.commands.own_rules import PATH as OWN_RULES
from handlers.commands.own_rules import apply_own
from handlers.ports import GitHubError, GitHubUnavailable, NotFound
from handlers.rules import RepositoryRules
from runner.model.machines import eligible, needs

APP = Part("GitHub App")
LEVELS = ("none", "read", "write", "admin")

MAX_SKEW_S = 30.0
"""GitHub takes tokens that were signed up to a minute in its future: half of that is a clock to look at."""

ENOUGH_LEFT = 0.1
"""The share of an hour's calls below which the doctor speaks up."""

MAX_WORKFLOWS = 20
"""Workflows of a repository that are read."""

OUR_BRANCH = "ptq/issue-1-0123456789"
"""Like those that a note makes."""

_HAS_POWER = re.compile(rb"\bsecrets\s*[.\[]|\bsecrets:\s*inherit|:\s*[\"']?write(?:-all)?\b")
"""What gives a workflow secrets, or a token that may write."""

TROUBLES = (GitHubError, GitHubUnavailable)


async def check_app(inspection: Inspection, settings: Settings) -> AsyncIterator[Finding]:
    """The App and its webhook. Ends early where GitHub does not know us."""
    try:
        skew_s = await inspection.measure_skew_s()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        fix = "mend [github] api_url, the network, or [proxy]; on an Enterprise Server it ends with /api/v3"
        words = f"GitHub does not answer at {settings.github.api_url} ({describe_failure(error)})"
        yield APP.fail("reachable", words, fix)
        return
    yield judge_skew(APP, "clock", "GitHub's", skew_s)
    try:
        app = await inspection.fetch_app()
    except TROUBLES as error:
        yield _explain_stranger(error)
        return
    yield APP.ok("key", f"GitHub knows us as {app.slug} (App {app.id})")
    for finding in judge_app(app, load_manifest()):
        yield finding
    try:
        for finding in judge_hook(await inspection.fetch_hook(), settings.server.delivery_url()):
            yield finding
        yield await check_deliveries(APP, inspection, settings)
    except TROUBLES as error:
        yield APP.fail("webhook", f"it cannot be looked at: {error}", "try again; see https://www.githubstatus.com")


def _explain_stranger(error: Exception) -> Finding:
    if isinstance(error, Unauthorized):
        fix = "make a new private key in the App's settings, and name its file in [github] private_key_file"
        return APP.fail("key", "GitHub does not take the private key for this app_id", fix)
    if isinstance(error, NotFound):
        return APP.fail("key", "GitHub knows no App of this app_id", "take [github] app_id from the App's settings")
    return APP.fail("key", f"GitHub cannot be asked: {error}", "try again; see https://www.githubstatus.com")


def judge_skew(part: Part, check: str, whose: str, skew_s: float | None) -> Finding:
    """How our clock stands to another one."""
    if skew_s is None:
        return part.ok(check, "the other side does not say its time")
    if abs(skew_s) <= MAX_SKEW_S:
        return part.ok(check, f"ours and {whose} agree")
    way = "ahead of" if skew_s > 0 else "behind"
    return part.fail(
        check, f"ours is {abs(skew_s):,.0f} s {way} {whose}", "set the clocks by NTP: tokens and leases depend on them"
    )


def judge_app(app: AppFacts, manifest: Manifest) -> Iterator[Finding]:
    """Permissions and events, against what `app.yml` wants."""
    missing = list(list_missing(app.permissions, manifest.permissions))
    more = [
        f"{name}: {level}"
        for name, level in sorted(app.permissions.items())
        if LEVELS.index(level) > LEVELS.index(manifest.permissions.get(name, "none"))
    ]
    if missing:
        fix = "give them to it under Permissions in the App's settings, and accept them in each installation"
        yield APP.fail("permissions", f"it lacks {', '.join(missing)}", fix)
    elif more:
        fix = "take them away under Permissions in the App's settings: what it cannot do, nobody can misuse"
        yield APP.warn("permissions", f"it has more than it needs: {', '.join(more)}", fix)
    else:
        yield APP.ok("permissions", "those of app.yml")
    if unheard := sorted(set(manifest.events) - app.events):
        yield APP.fail(
            "events", f"it does not hear {', '.join(unheard)}", "subscribe to them under Permissions in its settings"
        )
    else:
        yield APP.ok("events", "those of app.yml")


def list_missing(has: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """What is wanted and was not granted, as `issues: write`."""
    for name, level in sorted(wanted.items()):
        if LEVELS.index(has.get(name, "none")) < LEVELS.index(level):
            yield f"{name}: {level}"


def judge_hook(hook: HookFacts, url: str) -> Iterator[Finding]:
    """Where GitHub sends deliveries, and how."""
    place = "in the App's settings, under Webhook"
    if hook.url.rstrip("/") != url:
        words = f"GitHub sends deliveries to {hook.url or 'nobody'}, and we are at {url}"
        yield APP.fail("webhook", words, f"write that address {place}, or mend [server] public_url, or webhook_url")
    elif not hook.has_secret:
        yield APP.fail("webhook", "it has no secret, so we refuse what comes", f"set one of webhook_secrets {place}")
    elif hook.content_type != "json":
        yield APP.fail("webhook", "it sends forms, and we read JSON", f"choose application/json {place}")
    elif hook.insecure:
        words = "GitHub does not check our certificate, so anybody in between can read along"
        yield APP.warn("webhook", words, f"enable SSL verification {place}")
    else:
        yield APP.ok("webhook", url)


async def check_repository(
    inspection: Inspection, github: AppGitHub, settings: Settings, name: str
) -> AsyncIterator[Finding]:
    """One configured repository, and the way to it."""
    part = Part(f"repository {name}")
    rules = next(rules for rules in settings.repository_rules() if rules.name == name)
    try:
        installation = await inspection.fetch_installation(name)
        if finding := judge_installation(part, installation, load_manifest()):
            yield finding
            return
        facts = await inspection.fetch_repository(name)
        yield part.ok("installed", "the App is installed in it")
        yield judge_left(part, inspection.list_left(name))
        for finding in judge_repository(part, facts, settings, rules):
            yield finding
        yield await _check_branch(part, github, rules, facts)
        async for finding in _check_triggers(part, inspection, github, settings, rules, facts):
            yield finding
        if rules.push_to:
            yield await _check_fork(part, inspection, rules.push_to)
        elif not facts.private:
            yield await _check_workflows(part, inspection, github, name, facts.default_branch)
    except NotFound:
        fix = "install it there (App's settings, Install App), or mend the repository's name in ptq.toml"
        yield part.fail("installed", "the App is not installed in it, or there is no such repository", fix)
    except TROUBLES as error:
        left = inspection.list_left(name)
        if any(one.calls == 0 for one in left):
            yield judge_left(part, left)
        yield part.fail("reachable", f"it cannot be looked at: {error}", "try again; see https://www.githubstatus.com")


def judge_installation(part: Part, installation: InstallationFacts, manifest: Manifest) -> Finding | None:
    """What keeps the App from working although it is installed."""
    if installation.suspended:
        return part.fail("installed", "the installation is suspended", "unsuspend it in the account's settings")
    if missing := list(list_missing(installation.permissions, manifest.permissions)):
        fix = "accept the App's new permissions in the account's settings, under GitHub Apps"
        return part.fail("installed", f"the installation does not grant {', '.join(missing)}", fix)
    return None


def judge_left(part: Part, said: Sequence[Left]) -> Finding:
    """Whether much is left of the calls that GitHub takes in an hour. Pure."""
    if not said:  # So it is on an Enterprise Server, unless somebody there has set a limit.
        return part.ok("rate limit", "GitHub tells of none")
    left = min(said, key=lambda one: one.calls)
    words = f"{left.calls:,} of {left.limit:,} calls are left in this hour"
    if left.calls >= left.limit * ENOUGH_LEFT:
        return part.ok("rate limit", words)
    fix = "wait an hour; if it stays so: fewer replicas and repositories for one account, or ask GitHub for more"
    return part.warn("rate limit", words, fix) if left.calls else part.fail("rate limit", words, fix)


def judge_repository(
    part: Part, facts: RepositoryFacts, settings: Settings, rules: RepositoryRules
) -> Iterator[Finding]:
    """Whether there can be jobs for it, and who reads them."""
    if facts.archived or not facts.has_issues:
        words = "it is archived" if facts.archived else "it has no issues"
        yield part.fail("issues", words, "mend that on GitHub, or take its table out of ptq.toml")
    fitting = eligible(settings.machine_list(), rules.requires, private=facts.private)
    machines = [machine.name for machine in fitting]
    if machines:
        yield part.ok("machines", ", ".join(machines))
    else:
        fix = "let a machine with the labels of `requires` serve such repositories (`serves`)"
        wanted = needs(rules.requires, private=facts.private)
        yield part.fail("machines", f"no machine is for it: it needs {', '.join(wanted)}", fix)
    if facts.private and settings.dashboard.client_id is None:
        words = "it is private, so its jobs have no pages: nobody can sign in to show that they may read it"
        yield part.warn("pages", words, "set up [dashboard] so that people can sign in (docs/dashboard.md)")


async def _check_branch(part: Part, github: AppGitHub, rules: RepositoryRules, facts: RepositoryFacts) -> Finding:
    branch = rules.base_branch or facts.default_branch
    if await github.fetch_branch_sha(rules.name, branch) is None:
        return part.fail("base branch", f"there is no branch {branch}", "mend base_branch, or push a first commit")
    return part.ok("base branch", branch)


async def _check_triggers(
    part: Part,
    inspection: Inspection,
    github: AppGitHub,
    settings: Settings,
    rules: RepositoryRules,
    facts: RepositoryFacts,
) -> AsyncIterator[Finding]:
    """What the repository itself says of starting jobs, and whether it has the labels that start them."""
    content = await github.fetch_file(rules.name, OWN_RULES, facts.default_branch)
    if content is not None:
        rules = apply_own(rules, content, settings.preset_table())
        if rules.fault:
            fix = "mend the file on the default branch: until then nothing starts (docs/commands.md)"
            yield part.fail("own rules", f"{OWN_RULES} cannot be understood: {rules.fault}", fix)
            return
        yield part.ok("own rules", f"{OWN_RULES} narrows what may be asked for")
    missing = [label for label in rules.labels if not await inspection.has_label(rules.name, label)]
    yield judge_labels(part, facts.page, list(rules.labels), missing)


def name_label_command(page: str, label: str) -> str:
    """What somebody types to create a label in the repository at this address. Pure."""
    return f"gh label create {shlex.quote(label)} -R {shlex.quote(page)}"


def judge_labels(part: Part, page: str, labels: Sequence[str], missing: Sequence[str]) -> Finding:
    """Whether a repository has the labels that start jobs; `page` is its address. Pure."""
    if not missing:
        return part.ok("labels", ", ".join(labels) or "none starts a job: commands do")
    commands = "; ".join(name_label_command(page, label) for label in missing)
    words = f"it has no label {', '.join(missing)}, so nobody can start a job by that"
    return part.warn(
        "labels", words, f"create {'it' if len(missing) == 1 else 'them'} at {page}/labels, or by: {commands}"
    )


async def _check_fork(part: Part, inspection: Inspection, fork: str) -> Finding:
    try:
        await inspection.fetch_installation(fork)
    except NotFound:
        return part.fail("push_to", f"the App is not installed in {fork}", "install it in the fork as well")
    return part.ok("push_to", fork)


async def _check_workflows(part: Part, inspection: Inspection, github: AppGitHub, name: str, branch: str) -> Finding:
    """Whether a branch of ours would be run with the repository's secrets before anybody has read it."""
    paths = await inspection.list_workflows(name, branch)
    open_ones = [
        path.rpartition("/")[2]
        for path in paths[:MAX_WORKFLOWS]
        if runs_our_branches(await github.fetch_file(name, path, branch) or b"")
    ]
    if not open_ones:
        return part.ok("CI secrets", "no workflow runs our branches with secrets")
    words = f"{', '.join(open_ones)} run on every branch that is pushed, with secrets: agents' code before a review"
    return part.warn("CI secrets", words, 'set push_to = "owner/fork", or name branches in their `on: push`')


def runs_our_branches(workflow: bytes) -> bool:
    """Whether pushing a branch of ours runs a workflow, and that has secrets or a token that may write. Pure.

    https://docs.github.com/actions/reference/workflow-syntax-for-github-actions#onpushbranchestagsbranches-ignoretags-ignore
    """
    try:
        found = yaml.safe_load(workflow)
    except (yaml.YAMLError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    # YAML 1.1 reads the key `on` as true.
    on = found.get("on", found.get(True))
    if isinstance(on, dict) and "push" in on:
        runs = _takes_branch(on["push"] or {})
    else:
        runs = on == "push" or (isinstance(on, list) and "push" in on)
    return runs and _HAS_POWER.search(workflow) is not None


def _takes_branch(push: Any) -> bool:
    if not isinstance(push, dict):
        return False
    if isinstance(names := push.get("branches"), list):
        taken = False
        for name in map(str, names):  # The last one that fits decides.
            taken = not name.startswith("!") if _fits(name.removeprefix("!")) else taken
        return taken
    if isinstance(names := push.get("branches-ignore"), list):
        return not any(_fits(str(name)) for name in names)
    # Where only tags are named, branches are not run.
    return not ({"tags", "tags-ignore"} & push.keys())


def _fits(name: str) -> bool:
    """Whether a name with GitHub's wildcards is that of a branch of ours: `*` stops at slashes, `**` does not."""
    parts = re.split(r"(\*\*|\*)", name)
    pattern = "".join({"**": ".*", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(pattern, OUR_BRANCH) is not None
