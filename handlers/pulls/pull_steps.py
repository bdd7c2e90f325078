"""The steps from an approved diff to its draft pull request, with the Git Data API.

Each step first looks for its result, so that a repeat after a crash or a lost answer finds what exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from handlers.cases import casebook
from handlers.cases.casebook import Pull
from handlers.commands.own_rules import PATH, narrow
from handlers.context import Context
from handlers.effects.retry_policy import Abandoned
from handlers.jobs.history import is_on_branch, settle_base_branch
from handlers.ports import NotFound, PullRequest, TreeEntry
from handlers.pulls.note import has_note
from handlers.rules import RepositoryRules
from handlers.text.sanitize import show_code
from handlers.words.pull_body import (
    find_edits,
    render_commit_message,
    render_marker,
    render_note,
    render_pull_body,
    render_pull_title,
)
from handlers.words.pull_template import FOLDERS, choose_template
from handlers.words.report_comment import approvable, name_model
from runner.aside import run_aside
from runner.changes.artifacts import describe_bare_return
from runner.changes.base_files import check_base, list_folders
from runner.changes.patch import check_patch, list_bare_returns, list_bases
from runner.changes.patch_text import PatchMismatch
from runner.model.job import FileChange, Job, Report
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks

MAX_FOLDERS = 1_000
"""The most folders of changed files, because each needs a request to GitHub."""

MAX_NAMED = 10
"""The most pull requests that a message names if too many are open."""


_COMMENT = re.compile(r"#issuecomment-([0-9]{1,18})\Z")
"""The end of a comment's address, on issues and pull requests."""


@dataclass(frozen=True, slots=True)
class Brought:
    """The pull request of an approved diff. `updated` says that it existed before."""

    request: PullRequest
    updated: bool
    drops_edits: bool = False
    """Whether people's text in the earlier body could not be told from ours, and so was left out."""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The pull request of an earlier note on the issue, and its job."""

    pull: Pull
    job: Job
    request: PullRequest


@dataclass(frozen=True, slots=True)
class _Approved:
    """An approved diff that is being brought to GitHub."""

    rules: RepositoryRules
    job: Job
    report: Report
    title: str
    where: str
    """The repository for branch and commit: the job's repository, or a fork."""


def name_branch(job: Job) -> str:
    """The branch of a new pull request."""
    return f"ptq/task-{job.id}" if job.thread is None else f"ptq/issue-{job.thread}-{job.id}"


async def bring(context: Context, pull: Pull, job: Job, report: Report) -> Brought:
    """Create commit and branch, and update the open pull request of an earlier note, or open a new one.

    Raises `Abandoned`, `GitHubError` and `GitHubUnavailable`.
    """
    rules = context.rules_for(job.repository)
    if rules is None:
        raise Abandoned("this repository is no longer configured")
    has_page = bool(context.find_page_root(job))
    is_approvable = await run_aside(report.size, approvable, job, report, context.secrets, has_page=has_page)
    if report.digest != pull.digest or not is_approvable:
        raise Abandoned("the diff is no longer the one that the note approves, or must not be proposed")
    title = render_pull_title(pull, job, report, context.secrets)
    job = await settle_base_branch(context.github, rules, job)
    earlier = await _find_earlier(context, pull, job)
    approved = _Approved(rules, job, report, title, rules.push_to or job.repository)
    if earlier:
        return await _update(context, pull, approved, earlier)
    if pull.branch != name_branch(job):
        # The pull request that this note was going to update was closed meanwhile.
        pull = await change(context, pull, branch=name_branch(job), commit_sha=None)
    return Brought(await _open(context, pull, approved), updated=False)


async def _find_earlier(context: Context, pull: Pull, job: Job) -> _Earlier | None:
    """The pull request to update. None if this note opens a new one, or has begun to open one."""
    async with context.db.read() as connection:
        found = await casebook.fetch_updatable(connection, job)
    if found is None or found[0].number is None:
        return None
    earlier, earlier_job = found
    if pull.commit_sha and pull.branch != earlier.branch:
        return None
    request = await context.github.fetch_pull_request(job.repository, found[0].number)
    if request.state == "open" or request.head_sha == pull.commit_sha:
        return _Earlier(earlier, earlier_job, request)
    return None


async def _open(context: Context, pull: Pull, approved: _Approved) -> PullRequest:
    """Open a new pull request. Each part is looked for before it is created."""
    job, where = approved.job, approved.where
    if pull.commit_sha is None:
        pull = await _commit(context, pull, approved, [job.base_commit or ""])
    sha = pull.commit_sha or ""
    found = await _find_opened(context, pull, job, where)
    if found:
        return found
    await _check_may_open(context, approved, pull)
    await _check_room(context, approved.rules)
    if not await context.github.create_branch(where, pull.branch, sha):
        at = await context.github.fetch_branch_sha(where, pull.branch)
        if at != sha:
            raise Abandoned(f"the branch `{pull.branch}` exists with another commit: delete it first")
    body = await _render_body(context, pull, approved)
    request = await context.github.create_draft_pull_request(
        job.repository,
        title=approved.title,
        body=body,
        branch=pull.branch,
        base_branch=job.base_branch,
        head_repository=where,
    )
    if request.head_sha != sha:
        raise Abandoned(_describe_obstacle(request, pull.branch, is_ours=True))
    return request


async def _find_opened(context: Context, pull: Pull, job: Job, where: str) -> PullRequest | None:
    """The pull request that an earlier attempt opened and whose answer was lost.

    Our branch's name is not secret, and people with push access can open pull requests from it. So a pull request is
    ours only if our App opened it for this job, with the stored commit. Raises `Abandoned` if another pull request is
    open from the branch.
    """
    requests = await context.github.list_pull_requests(job.repository, pull.branch, where)
    login, marker = await context.github.own_login(), render_marker(job.id)
    ours = [
        request
        for request in requests
        if request.author == login and request.base_branch == job.base_branch and marker in request.body
    ]
    found = next((request for request in ours if request.head_sha == pull.commit_sha), None)
    obstacle = next((request for request in requests if request.state == "open"), None)
    if found is None and obstacle:
        raise Abandoned(_describe_obstacle(obstacle, pull.branch, is_ours=obstacle in ours))
    return found


def _describe_obstacle(request: PullRequest, branch: str, *, is_ours: bool) -> str:
    """Why an open pull request is not ours, and what to do."""
    if is_ours:
        return (
            f"somebody else has pushed to pull request #{request.number}, so it has more than the approved diff: "
            "close it and delete its branch first"
        )
    return (
        f"{show_code(request.author, (), 50)} has opened pull request #{request.number} from the branch `{branch}`, "
        "which this diff needs: close it and delete its branch first"
    )


async def _update(context: Context, pull: Pull, approved: _Approved, earlier: _Earlier) -> Brought:
    """Add a commit to the branch, so that the branch's whole change is the approved one. Then update body and title."""
    job, branch, number = approved.job, earlier.pull.branch, earlier.request.number
    approved = replace(approved, where=earlier.request.head_repository or job.repository)
    moved = Abandoned(
        f"somebody else has pushed to pull request #{number}, so it was not changed. "
        "After it is merged or closed, a note opens a new one"
    )
    at = await context.github.fetch_branch_sha(approved.where, branch)
    if at is None or at not in (earlier.pull.commit_sha, pull.commit_sha):
        raise moved
    if pull.commit_sha is None:
        parents = await _choose_parents(context, job, earlier)
        pull = await _commit(context, replace(pull, branch=branch), approved, parents)
    if at != pull.commit_sha:
        await _check_may_open(context, approved, pull)
        if not await context.github.move_branch(approved.where, branch, pull.commit_sha or ""):
            raise moved
    # Read as late as possible, because people may edit it at any time.
    written = (await context.github.fetch_pull_request(job.repository, number)).body
    edits = find_edits(written, (render_note(pull), render_note(earlier.pull)), context.secrets)
    if edits is None and not pull.drops_edits:
        # Stored before the body is replaced. If the answer is lost, the next attempt reads the new body, which does not
        # show that edits were dropped.
        pull = await change(context, pull, drops_edits=True)
    body = await _render_body(context, pull, approved, edits or "")
    title = approved.title if pull.title else None
    await context.github.update_pull_request(job.repository, number, body=body, title=title)
    return Brought(earlier.request, updated=True, drops_edits=pull.drops_edits)


async def _choose_parents(context: Context, job: Job, earlier: _Earlier) -> list[str]:
    """The parents of the new commit: the branch's commit and, if the change begins from a newer base commit, that one.

    The pull request then shows the difference from that base commit, which is the approved diff.
    """
    head, base, base_before = earlier.pull.commit_sha or "", job.base_commit or "", earlier.job.base_commit or ""
    if base == base_before:
        return [head]
    if await context.github.contains(job.repository, base, base_before):
        return [head, base]
    raise Abandoned(
        f"this diff is based on `{base[:10]}`, which does not come after `{base_before[:10]}`, the base of "
        f"pull request #{earlier.request.number}: {_say_how_to_begin_anew(job)}"
    )


def _say_how_to_begin_anew(job: Job) -> str:
    if job.thread is None:
        return "a new task makes a diff on the newest commit"
    return "`/ptq fix` makes a diff on the newest commit"


async def _check_base(context: Context, job: Job) -> None:
    """Check that the base commit is on the base branch now: a pull request includes all ancestors of its commit."""
    commit = job.base_commit or ""
    if not await is_on_branch(context.github, job.repository, job.base_branch, commit):
        raise Abandoned(
            f"the diff's base commit `{commit[:10]}` is not on {show_code(job.base_branch, ())}, so a pull request "
            f"would contain more than the diff: {_say_how_to_rebase(job)}"
        )


def _say_how_to_rebase(job: Job) -> str:
    if job.thread is None:
        return "a rebase on the job's page moves the diff to the newest commit of a branch"
    return "`/ptq rebase` moves the diff to the newest commit"


async def _check_may_open(context: Context, approved: _Approved, pull: Pull) -> None:
    """Check again the note, the approver's permission, the repository's own rules, and the base.

    Hours may have passed since the note and the commit.
    """
    job = approved.job
    if job.private and not (await context.github.fetch_repository(job.repository)).private:
        raise Abandoned("the diff was made while this repository was private")
    await _check_note(context, job, pull)
    await _check_base(context, job)
    rules = await narrow(context, approved.rules)
    if rules.fault:
        raise Abandoned(f"invalid `{PATH}` on the default branch: {rules.fault}")
    least = rules.who_may_open
    if await context.github.fetch_role(rules.name, pull.approver) < least:
        raise Abandoned(f"{pull.approver} no longer has {least.word} access, so the note is not valid")
    if pull.approver_id is not None:
        await _check_account(context, job, pull.approver, pull.approver_id)


async def _check_account(context: Context, job: Job, login: str, account_id: int) -> None:
    """Check that the login still belongs to the account that wrote the note.

    People can rename their accounts, and others can then take the old name.
    """
    try:
        is_theirs = await context.github.fetch_account_id(job.repository, login) == account_id
    except NotFound:
        is_theirs = False
    if not is_theirs:
        raise Abandoned(f"the login {login} no longer belongs to the author of the note, so the note is not valid")


async def _check_note(context: Context, job: Job, pull: Pull) -> None:
    """Check that the comment still has the note. People withdraw a note by deleting or editing the comment."""
    place = _COMMENT.search(pull.note_url)
    if place is None:
        return
    try:
        comment = await context.github.fetch_comment(job.repository, int(place[1]))
    except NotFound:
        raise Abandoned("the comment with the note was deleted, so the note is not valid") from None
    if not has_note(comment.body, pull.note, pull.title, pull.digest):
        raise Abandoned("the comment with the note was edited later, so the note is not valid")


async def _render_body(context: Context, pull: Pull, approved: _Approved, edits: str = "") -> str:
    job, report = approved.job, approved.report
    async with context.db.read() as connection:
        author, checks = await job_rows.fetch_author(connection, job), await fetch_checks(connection, job.id)
        meter = await job_rows.fetch_meter(connection, author.id)
    secrets, template = context.secrets, await _fetch_template(context, job)
    model = name_model(author, meter, context.model_of(author), secrets)
    return await run_aside(
        report.size + len(template),
        render_pull_body,
        pull,
        job,
        report,
        checks,
        template=template,
        edits=edits,
        author=author,
        model=model,
        public_url=context.find_page_root(job),
        secrets=secrets,
    )


async def _fetch_template(context: Context, job: Job) -> str:
    """The repository's pull request template at the base commit. Empty if there is none."""
    commit = job.base_commit or ""
    path = choose_template(await context.github.list_files(job.repository, FOLDERS, commit))
    content = await context.github.fetch_file(job.repository, path, commit) if path else None
    return (content or b"").decode(errors="replace")


async def _check_room(context: Context, rules: RepositoryRules) -> None:
    """Check that there are not too many open pull requests of ours."""
    numbers = await context.github.list_own_open_pulls(rules.name)
    if len(numbers) >= rules.max_open_pulls:
        names = ", ".join(f"#{number}" for number in sorted(numbers)[:MAX_NAMED])
        raise Abandoned(
            f"ptq-bot has {len(numbers)} open pull requests here ({names}), and the limit is {rules.max_open_pulls}: "
            "merge or close one of them first"
        )


async def _check_diff(context: Context, job: Job, report: Report) -> None:
    """Check that the approved diff, applied to GitHub's files at the base commit, gives exactly the stored change."""
    paths = [change.path for change in report.changes]
    if len({folder for path in paths for folder in list_folders(path)}) > MAX_FOLDERS:
        raise Abandoned(f"the changed files are in more than {MAX_FOLDERS} folders")
    found = await context.github.find_base_files(job.repository, paths, job.base_commit or "")
    try:
        check_base(report.changes, found)
        bases = list_bases(report.changes)
        files = {path: await context.github.fetch_blob(job.repository, found[path].sha) for path in bases}
        size = len(report.patch) + sum(map(len, files.values()))
        await run_aside(size, check_patch, report.patch, report.changes, files)
        returns = await run_aside(size, list_bare_returns, report.patch)
    except PatchMismatch as error:
        raise Abandoned(f"the diff in the report differs from the change: {error}") from None
    if returns:
        raise Abandoned(describe_bare_return(returns[0]))


async def _commit(context: Context, pull: Pull, approved: _Approved, parents: Sequence[str]) -> Pull:
    """Create the commit. Its SHA is stored before any ref is created, so that a repeat recognizes its own branch."""
    rules, job, where = approved.rules, approved.job, approved.where
    await _check_base(context, job)
    await _check_diff(context, job, approved.report)
    entries = [await _entry(context, where, change) for change in approved.report.changes]
    tree = await context.github.create_tree(where, job.base_commit or "", entries)
    wants_person = rules.sign_off or rules.commit_author == "approver"
    approver = await context.github.fetch_author(job.repository, pull.approver) if wants_person else None
    async with context.db.read() as connection:
        written_in = await job_rows.fetch_author(connection, job)
    message = render_commit_message(approved.title, written_in, pull, approver if rules.sign_off else None)
    author = approver if rules.commit_author == "approver" else None
    sha = await context.github.create_commit(where, message, tree, parents, author)
    return await change(context, pull, branch=pull.branch, commit_sha=sha)


async def _entry(context: Context, repository: str, change: FileChange) -> TreeEntry:
    """Text is sent inline in the tree request; only binary files need a blob."""
    if change.mode is None:
        return TreeEntry(change.path, change.old_mode or "100644")
    content = change.content or b""
    if change.binary:
        return TreeEntry(change.path, change.mode, blob_sha=await context.github.create_blob(repository, content))
    return TreeEntry(change.path, change.mode, text=content.decode())


async def change(context: Context, pull: Pull, **changes: object) -> Pull:
    """`casebook.change_pull` in its own transaction."""
    async with context.db.write() as connection:
        return await casebook.change_pull(connection, pull, **changes)
