"""The bot's replies in threads. Pure.

Other modules have statuses (`status_comment`), holds (`hold_replies`), reports (`report_comment`), messages to agents
(`tellings`), pull requests (`pull_body`) and the help (`commands`).

Commands in sentences are always in code, so that the bot's own comments never give commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from handlers.addresses import link_job
from handlers.rules import Offer, Preset, Role
from handlers.text.sanitize import make_plain_line, show_code
from runner.model.caps import CapUse, Scope
from runner.model.job import Job, Posts
from runner.rows.pauses import Pause

_FREE_AGAIN = {
    Scope.USER_DAY: " It resets at 00:00 UTC.",
    Scope.REPOSITORY_DAY: " It resets at 00:00 UTC.",
    Scope.REPOSITORY_MONTH: " It resets next month (UTC).",
}


def render_confidential() -> str:
    """Replaces a confidential report. It does not say what the job found, or how it ended."""
    return "The run has finished. The operator of this App will review the result privately."


def render_started_again(again: Job, public_url: str) -> str:
    """The next step of a lost job that was restarted."""
    return (
        f"Restarted automatically as {link_job(public_url, again.id, f'attempt {again.attempt}')}, "
        "on another machine if possible. `/ptq cancel` stops it."
    )


def render_lost_twice(lost: Job) -> str:
    """The next step of a job that was lost again after a restart."""
    return (
        "Lost twice in a row, so it is not restarted. "
        f"The operator of this App should check machine `{lost.machine}` first."
    )


def render_not_again(why: str) -> str:
    """Why a lost job was not restarted. `why` is a clause that we wrote."""
    return f"Not restarted: {why}."


def render_unrenderable(job: Job, public_url: str) -> str:
    """Replaces a report that cannot be shown."""
    ended = f"`{job.preset}` attempt {job.attempt} has ended ({job.state})"
    if not public_url:
        return f"{ended}. Its report cannot be shown here. The operator of this App can read it."
    return f"{ended}. Its report cannot be shown here: {link_job(public_url, job.id, 'read it')}."


def render_shortened(public_url: str, job_id: str | None) -> str:
    """Replaces a comment whose text GitHub rejected. `public_url` is empty for a job without a page."""
    if not public_url:
        return "GitHub rejected this comment's text. The operator of this App can read it."
    if job_id is None:
        return f"GitHub rejected this comment's text. See [the jobs]({public_url}/jobs)."
    return f"GitHub rejected this comment's text: {link_job(public_url, job_id, 'read it here')}."


def render_busy(public_url: str, job_id: str, *, ending: bool = False) -> str:
    """A request while another job is active."""
    if ending:
        job = link_job(public_url, job_id, "The job on this issue")
        return f"{job} is being cancelled. Please try again after its report is posted."
    job = link_job(public_url, job_id, "this one")
    return f"Only one job at a time can run on an issue: {job} is still running. `/ptq cancel` stops it."


def render_unfit_option(why: str) -> str:
    """An option that this agent does not have, or a limit of the run that does not fit."""
    return f"Not started: {why}."


def render_option_refused(why: str, offers: Mapping[str, Offer], machines: Sequence[str]) -> str:
    """Invalid options, with a list of valid ones."""
    lines = [f"Not started: {why}. Available options:", ""]
    for agent, offer in offers.items():
        asked = " or ".join(f"`--model {model}`" for model in offer.models)
        levels = f"; `--thinking` takes {', '.join(f'`{level}`' for level in offer.thinking)}" if offer.thinking else ""
        lines.append(f"- `--agent {agent}`{f', with {asked}' if asked else ''}{levels}")
    lines += [f"- `--machine {machine}`" for machine in machines]
    return "\n".join(lines)


def render_nothing_to_retry() -> str:
    """`/ptq retry` on an issue without an attempt."""
    return "No attempt has run on this issue yet. Start one with `/ptq diagnose`."


def render_retry_refused() -> str:
    """`/ptq retry` of a confidential attempt. The reply does not say why it is refused."""
    return "Not started: `/ptq retry` cannot continue this attempt. `/ptq fix` starts a new one."


def render_not_fresh(command: str) -> str:
    """A command with `--fresh` that only continues an earlier attempt."""
    return f"Not started: `--fresh` does not work with `{command}`, which continues an earlier attempt."


def render_preset_for_retry(command: str) -> str:
    """The option `--preset` of a command that names its preset itself."""
    return f"Not started: `--preset` only works with `/ptq retry`. `{command}` always uses its own preset."


def render_not_a_retry(command: str) -> str:
    """`/ptq retry` with a preset that continues nothing."""
    return f"Not started: this preset cannot continue an attempt. Use `{command}`."


def render_capped(use: CapUse, requested_by: str, *, is_quota: bool, again: bool = False) -> str:
    """A cap is used up. Says when it resets, and who can raise it.

    It is about a request, or about the restart of a lost job (`again`).

    A quota (`is_quota`) is a cap that the repository has set itself.
    """
    head, free = "Not restarted" if again else "Not started", _FREE_AGAIN.get(use.scope, "")
    raised = f"Only the operator of this App can raise it: `{use.key}` in `ptq.toml`."
    if is_quota:
        raised = f"Maintainers can raise it: `quotas.{use.scope}` in `.github/ptq.toml`."
    return f"{head}: {use.describe(requested_by)} is used up.{free} {raised}"


def render_no_permission(login: str, repository: str, role: Role, *, command: str = "", helps: bool = False) -> str:
    """The only answer to somebody without the needed permission on an issue.

    `command` is the command that the person used, if any. `helps` says that the person may start jobs.
    """
    can = f"can use `{command}`" if command else "can do it"
    if helps:
        return f"@{login}, you need {role.word} access to `{repository}` for this. A maintainer {can}."
    return (
        f"Thanks, @{login}. Only people with {role.word} access to `{repository}` can do this here. A maintainer {can}."
    )


def render_not_configured(login: str, repository: str) -> str:
    """The only answer to a requester in a repository that is not configured."""
    return f'@{login}, `{repository}` isn\'t configured yet. Operators: add `[repos."{repository}"]` to `ptq.toml`.'


def render_pull_request_thread() -> str:
    """Commands on a pull request that the bot did not open, or that belongs to a task without an issue."""
    return (
        "ptq-bot only works on issues and on the pull requests that it opened for them. Please write the command on "
        "the issue that this pull request is about. For a pull request of a task, use the job's page: the description "
        "of the pull request links to it."
    )


def render_withdrawn() -> str:
    """A late command whose comment was deleted or edited meanwhile."""
    return (
        "Ignored: this command reached ptq-bot late, and its comment was deleted or edited meanwhile. "
        "Please comment again if you still want it."
    )


def render_edited() -> str:
    """A command in an edited comment."""
    return "Commands in edited comments are ignored. Please post a new comment."


def render_quoted_mail() -> str:
    """Commands in a comment with a mail that is not marked as a quote."""
    return (
        "This comment holds a quoted e-mail, so its commands are not carried out. "
        "Write the command on GitHub, in a comment without the e-mail."
    )


def render_no_advice(preset: str) -> str:
    """A preset without the instructions that it needs."""
    return f"Not started: `/ptq run {preset}` needs instructions after it."


def render_presets(presets: Iterable[Preset]) -> str:
    """`/ptq run` without a valid preset."""
    rows = [f"- `{preset.command}`: {make_plain_line(preset.goal, (), 200)}" for preset in presets]
    return "\n".join(["Not started. Usage: `/ptq run PRESET`. Available presets:", "", *rows])


def render_nothing_to_carry_on(command: str) -> str:
    """A preset that continues with the edits of the last attempt, after one without edits."""
    return f"The last attempt has no change, and `{command}` needs one. `/ptq fix` makes one."


def render_nothing_to_rebase() -> str:
    """`/ptq rebase` without a diff."""
    return (
        "There is no diff to rebase: none waits for a note, and none is in a pull request of ptq-bot. "
        "`/ptq fix` makes one on the newest commit."
    )


def render_onto_refused(base_branch: str) -> str:
    """`/ptq rebase onto` an invalid target."""
    return (
        "Not started: `onto` needs the name of an existing branch, or the full SHA of a commit on "
        f"{show_code(base_branch, (), 200)}."
    )


def render_onto_missing(branch: str) -> str:
    """A rebase without a target, of a diff whose base branch GitHub does not have."""
    named = show_code(branch, (), 200)
    return (
        f"Not started: GitHub has no branch {named}, the base of this diff. Name a branch: `/ptq rebase onto BRANCH`."
    )


def render_up_to_date(branch: str, commit: str) -> str:
    """`/ptq rebase` of a change that is already based on this commit."""
    return (
        f"The diff is already based on commit `{commit[:10]}` of {show_code(branch, (), 200)}, so there is nothing to "
        "rebase."
    )


def render_nothing_to_verify() -> str:
    """`/ptq verify` on an issue without a script."""
    return (
        "There is no script to run, neither in the issue nor from an attempt. `/ptq repro` asks an agent to write one."
    )


def render_spoken_against(reasons: Sequence[str], command: str) -> str:
    """A request for an issue that somebody may be working on. `reasons` are clauses that we wrote."""
    why = " and ".join([", ".join(reasons[:-1]), reasons[-1]] if reasons[1:] else reasons)
    return f"Not started: {why}. Use `{command} --anyway` to start anyway."


def render_issue_changed(number: int) -> str:
    """A request on a pull request whose issue has changed since the request."""
    return f"Not started: issue #{number} has changed since your comment. Please check it, and use the command there."


def render_issue_gone(number: int) -> str:
    """A request on a pull request whose issue GitHub does not find."""
    return f"Not started: GitHub does not find issue #{number} in this repository. It was deleted or transferred."


def render_label_too_late() -> str:
    """A label whose event did not arrive, on an issue that has changed since."""
    return (
        "Not started: the label's event did not arrive, and the issue has changed since then. "
        "Please check the issue, then remove and re-add the label."
    )


def render_broken_rules(fault: str) -> str:
    """A request in a repository whose own rules are not valid. `fault` may contain text from the file."""
    why = make_plain_line(fault, (), 300)
    return f"Invalid `.github/ptq.toml` on the default branch: {why}. Fix it to use ptq-bot."


def render_paused(pause: Pause) -> str:
    """A request while new jobs are paused."""
    return f"Not started: {pause.describe()}. Please try again later."


def render_pause_begun(login: str, label: str) -> str:
    """The pause label was added."""
    return (
        f"Paused by @{login}. New jobs in this repository won't start until the label {show_code(label, (), 50)} is "
        "removed from this issue. Running jobs continue; `/ptq cancel` stops one."
    )


def render_pause_ended(login: str) -> str:
    """The pause label was removed."""
    return f"Resumed by @{login}. New jobs can start again."


def render_pause_kept(login: str, label: str, least: Role, *, put_back: bool) -> str:
    """The pause label was removed by somebody who may not end a pause."""
    named = show_code(label, (), 50)
    how = f"To end the pause, somebody with {least.word} access must add the label {named} again and remove it."
    now = f"ptq-bot has put {named} back." if put_back else how
    return f"@{login}, new jobs are still paused: only people with {least.word} access can end a pause. {now}"


def render_no_results() -> str:
    """`/ptq results` on an issue without an ended job."""
    return "There are no results yet: no job on this issue has finished. See `/ptq status`."


def render_again(body: str) -> str:
    """A report that is posted again."""
    return f"The last report again:\n\n{body}"


def render_private_before() -> str:
    """A request for the results of a job that ran before its repository became public."""
    return "The last attempt ran while this repository was private, so its results are not used here."


def render_unknown_command(word: str, suggestion: str | None) -> str:
    """A command that does not exist."""
    meant = f" Did you mean `/ptq {suggestion}`?" if suggestion else ""
    return f"Unknown command `/ptq {word}`.{meant} See `/ptq help`."


def render_idle(public_url: str, last: Job | None, *, confidential: bool = False) -> str:
    """`/ptq status` without an active job. If the last job is `confidential`, the reply does not say how it ended."""
    if last is None:
        return "No job has run on this issue yet. See `/ptq help`."
    state = link_job(public_url, last.id, "ended" if confidential else str(last.state))
    return f"No job is running. Last: `{last.preset}` attempt {last.attempt}, {state}."


def render_nothing_to_cancel() -> str:
    """`/ptq cancel` without an active job."""
    return "No job is running on this issue."


def render_cancelling(job: Job, public_url: str) -> str:
    """`/ptq cancel`, accepted."""
    is_told = job.posts is Posts.ALL
    follows = (
        "Its report will follow." if is_told else "It was started by the operator and will not post a report here."
    )
    return f"Cancelling {link_job(public_url, job.id, 'this job')}. {follows}"


def render_no_diff() -> str:
    """`/ptq pr` on a case without a diff."""
    return "There's no diff to open a pull request from. `/ptq fix` makes one."


def render_stale_digest(given: str, standing: str) -> str:
    """`/ptq pr` with a digest that is not the digest of the current diff."""
    return (
        f"`{given}` is outdated. The current diff is `{standing}`. "
        f"Please read the newest report and, if you agree with it, reply with `/ptq pr {standing}` and your note."
    )


def render_newer_report(standing: str) -> str:
    """`/ptq pr` without a digest, if the newest report has no diff or came after the comment."""
    return (
        "Your comment has no digest, and when you wrote it, the newest report was not the one with the current diff. "
        f"If you mean the current diff, reply with `/ptq pr {standing}` and your note."
    )


def render_report_changed(*, is_absent: bool) -> str:
    """`/ptq pr` if our report was changed on GitHub, or GitHub does not find it (`is_absent`)."""
    if is_absent:
        why = "GitHub did not find the report comment, so this note was not accepted."
        becomes = "If the comment was deleted, the report is posted again in a few minutes:"
    else:
        why = "The report comment was changed on GitHub after ptq-bot posted it, so this note was not accepted."
        becomes = "The report is being restored:"
    return f"{why} {becomes} please read it and, if you agree with it, send your note again."


def render_unshown_diff() -> str:
    """`/ptq pr` for a diff that is neither on a page nor in a comment."""
    return (
        "This diff cannot become a pull request, because nobody could read all of it: it is not in a comment, and jobs "
        "of private repositories have a page only if sign-in is configured. Ask for a smaller change, or ask the "
        "operator of this App to set up sign-in."
    )


def render_pull_opened(number: int, approver: str, *, updated: bool = False, drops_edits: bool = False) -> str:
    """The pull request of an issue was opened, or was `updated` with a new diff.

    `drops_edits` says that people's text in the earlier body was left out.
    """
    done = f"Pull request #{number} now has this diff" if updated else f"Draft pull request #{number} is open"
    body = f"It begins with @{approver}'s note."
    if drops_edits:
        body += (
            " ptq-bot's hidden marker was missing from the description, so the whole description was rewritten. "
            "The earlier text is in its edit history on GitHub."
        )
    return f"{done}. {body} Please review it before you merge it."


def render_pull_exists(number: int | None) -> str:
    """A diff that a note has approved already. `number` is None while its pull request is being opened."""
    if number is None:
        return "An earlier note for this diff was accepted. Its draft pull request is being opened."
    return f"Pull request #{number} already contains this diff."


def render_pull_failed(reason: str) -> str:
    """The pull request for a note could not be opened."""
    why = make_plain_line(reason, (), 300)
    return f"Could not open the pull request: {why}. After this is fixed, please send the note again."
