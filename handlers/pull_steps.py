"""The steps from an approved diff to its draft pull request, through the Git Data API.

Each is looked for before it is made, so that a repeat after a crash or a lost answer finds what was done before.
Refuses to know who decides that there is to be one, and what is said of it afterwards.
"""

from __future__ import annotations

from handlers import casebook
from handlers.case import Case
from handlers.casebook import Pull
from handlers.context import Context
from handlers.ports import PullRequest, TreeEntry
from handlers.pull_body import render_commit_message, render_pull_body, render_pull_title
from handlers.pull_template import FOLDERS, choose_template
from handlers.report_comment import approvable, name_model
from handlers.rules import RepositoryRules
from runner import store
from runner.check_rows import fetch_checks
from runner.job import FileChange, Job, Report
from runner.patch import Untrue, check_patch, list_bases

MAX_NAMED = 10
"""Pull requests that are named where there are too many."""


class PullAbandoned(Exception):  # noqa: N818
    """This pull request can never be opened; the message says why."""


async def bring(context: Context, pull: Pull, job: Job, report: Report, case: Case) -> PullRequest:
    """Commit, branch and pull request. Raises `PullAbandoned`, `GitHubError` and `GitHubUnavailable`."""
    rules = context.rules_for(job.repository)
    if rules is None:
        raise PullAbandoned("the operator of this App no longer has this repository set up")
    if report.digest != pull.digest or not approvable(job, report, context.secrets):
        raise PullAbandoned("the diff is no longer the one that the note approves, or may not be proposed")
    title = render_pull_title(pull, report, case.title, context.secrets)
    if pull.commit_sha is None:
        await _check(context, job, report)
        pull = await _commit(context, rules, pull, job, report, title)
    sha = pull.commit_sha or ""
    # Before the branch is looked at: once the pull request is open, people may push to it.
    found = await context.github.find_pull_request(job.repository, pull.branch)
    if found:
        return found
    # Between the note and now may lie an outage of hours.
    if not await context.github.can_write(job.repository, pull.approver):
        raise PullAbandoned(f"{pull.approver} has no write access any more, so the note approves nothing")
    await _check_room(context, rules)
    if not await context.github.create_branch(job.repository, pull.branch, sha):
        at = await context.github.fetch_branch_sha(job.repository, pull.branch)
        if at != sha:
            raise PullAbandoned(f"the branch `{pull.branch}` exists and points at something else")
    body = await _render_body(context, pull, job, report)
    return await context.github.create_draft_pull_request(
        job.repository, title=title, body=body, branch=pull.branch, base_branch=job.base_branch
    )


async def _render_body(context: Context, pull: Pull, job: Job, report: Report) -> str:
    async with context.db.read() as connection:
        meter, checks = await store.fetch_meter(connection, job.id), await fetch_checks(connection, job.id)
    secrets, url = context.secrets, context.public_url
    model = name_model(job, meter, context.model_of(job), secrets)
    template = await _fetch_template(context, job)
    return render_pull_body(pull, job, report, checks, template=template, model=model, public_url=url, secrets=secrets)


async def _fetch_template(context: Context, job: Job) -> str:
    """What the repository wants in pull requests, as of the base commit; empty where it says nothing."""
    commit = job.base_commit or ""
    path = choose_template(await context.github.list_files(job.repository, FOLDERS, commit))
    content = await context.github.fetch_file(job.repository, path, commit) if path else None
    return (content or b"").decode(errors="replace")


async def _check_room(context: Context, rules: RepositoryRules) -> None:
    """That reviewers have no more of our pull requests open before them than the operator wants."""
    numbers = await context.github.list_own_open_pulls(rules.name)
    if len(numbers) >= rules.max_open_pulls:
        names = ", ".join(f"#{number}" for number in sorted(numbers)[:MAX_NAMED])
        raise PullAbandoned(
            f"{len(numbers)} of our pull requests are open here ({names}), and {rules.max_open_pulls} are the most: "
            "one of them has to be merged or closed first"
        )


async def _check(context: Context, job: Job, report: Report) -> None:
    """That the diff which the note approves is the whole change, on what GitHub has at the base commit."""
    try:
        files = {
            path: await context.github.fetch_file(job.repository, path, job.base_commit or "")
            for path in list_bases(report.patch, report.changes)
        }
        check_patch(report.patch, report.changes, {path: file for path, file in files.items() if file is not None})
    except Untrue as error:
        raise PullAbandoned(f"the diff in the report is not the change: {error}") from None


async def _commit(context: Context, rules: RepositoryRules, pull: Pull, job: Job, report: Report, title: str) -> Pull:
    """Make the commit and record its SHA before any ref names it: a repeat then finds the branch to be its own."""
    entries = [await _entry(context, job, change) for change in report.changes]
    tree = await context.github.create_tree(job.repository, job.base_commit or "", entries)
    wants_person = rules.sign_off or rules.commit_author == "approver"
    approver = await context.github.fetch_person(job.repository, pull.approver) if wants_person else None
    message = render_commit_message(title, job, pull, approver if rules.sign_off else None)
    author = approver if rules.commit_author == "approver" else None
    sha = await context.github.create_commit(job.repository, message, tree, [job.base_commit or ""], author)
    return await change(context, pull, commit_sha=sha)


async def _entry(context: Context, job: Job, change: FileChange) -> TreeEntry:
    """Text goes inline into the tree request; only what is no text needs a blob of its own."""
    if change.mode is None:
        return TreeEntry(change.path, change.old_mode or "100644")
    content = change.content or b""
    if change.binary:
        return TreeEntry(change.path, change.mode, blob_sha=await context.github.create_blob(job.repository, content))
    return TreeEntry(change.path, change.mode, text=content.decode())


async def change(context: Context, pull: Pull, **changes: object) -> Pull:
    """`casebook.change_pull` in a transaction of its own."""
    async with context.db.write() as connection:
        return await casebook.change_pull(connection, pull, **changes)
