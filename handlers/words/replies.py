"""Every sentence that the bot posts, but for statuses (`status_comment`), what holders of environments are told
(`hold_replies`), reports (`report_comment`), pull requests (`pull_body`) and the help (`commands`).

Pure. No sentence holds a live command: commands stand in code, so that no reader of our own comments acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from handlers.addresses import link_job
from handlers.rules import Preset, Role
from handlers.text.sanitize import make_plain_line, show_code
from runner.model.caps import CapUse, Scope
from runner.model.job import Job, Posts
from runner.rows.pauses import Pause

_FREE_AGAIN = {
    Scope.JOB: "Only the operator of this App can raise it.",
    Scope.ISSUE: "Only the operator of this App can raise it.",
    Scope.USER_DAY: "It is free again tomorrow (UTC).",
    Scope.REPOSITORY_DAY: "It is free again tomorrow (UTC).",
    Scope.REPOSITORY_MONTH: "It is free again next month (UTC).",
}


def render_confidential() -> str:
    """In place of a report that is for the operator alone. It says nothing of what the job found, or how it ended."""
    return "The run has ended. Its result is with the operator of this App, who decides what becomes of it."


def render_started_again(again: Job, public_url: str) -> str:
    """What comes after a lost job that was started again."""
    return (
        f"None is needed: it was started again, once, as {link_job(public_url, again.id, f'attempt {again.attempt}')}, "
        "on another machine if there is one. `/ptq cancel` ends that."
    )


def render_lost_twice(lost: Job) -> str:
    """What comes after a job that was started again, and lost again."""
    return (
        "This was the second loss in a row, so nothing more happens by itself. "
        f"The operator of this App should look at machine `{lost.machine}` first."
    )


def render_not_again(why: str) -> str:
    """Why a lost job was not started again; `why` is a clause of ours."""
    return f"It was not started again: {why}."


def render_unrenderable(job: Job, public_url: str) -> str:
    """In place of a report that we cannot show."""
    ended = f"`{job.preset}` attempt {job.attempt} has ended ({job.state})"
    if not public_url:
        return f"{ended}, and its report cannot be shown here. The operator of this App can read it."
    return f"{ended}, and its report cannot be shown here: {link_job(public_url, job.id, 'read it')}."


def render_shortened(public_url: str, job_id: str | None) -> str:
    """In place of a comment that GitHub would not take as it was."""
    if not public_url:
        return "What belongs here could not be posted as it is. The operator of this App can read it."
    if job_id is None:
        return f"The answer to this could not be posted as it was. [The jobs]({public_url}/jobs) say what there is."
    return f"What belongs here could not be posted as it is: {link_job(public_url, job_id, 'read it')}."


def render_busy(public_url: str, job_id: str, *, ending: bool = False) -> str:
    """A second request while a job is active."""
    if ending:
        job = link_job(public_url, job_id, "The job on this issue")
        return f"{job} is being cancelled: please ask again when its report is here."
    job = link_job(public_url, job_id, "this one")
    return f"One job at a time on an issue: {job} is still under way. `/ptq cancel` ends it."


def render_option_refused(why: str, offers: Mapping[str, Sequence[str]], machines: Sequence[str]) -> str:
    """Options that start nothing, and those that would. `offers` are the models of each agent."""
    lines = [f"No job was started: {why}. What may stand before your advice:", ""]
    for agent, models in offers.items():
        asked = " or ".join(f"`--model {model}`" for model in models)
        lines.append(f"- `--agent {agent}`{f', with {asked}' if asked else ''}")
    lines += [f"- `--machine {machine}`" for machine in machines]
    return "\n".join(lines)


def render_nothing_to_retry() -> str:
    """`/ptq retry` on an issue that has had no job."""
    return "No attempt on this issue has ended, so there is nothing to carry on from. `/ptq diagnose` makes the first."


def render_retry_refused() -> str:
    """`/ptq retry` of an attempt that only the operator may know about: says nothing about why."""
    return "The operator of this App decides about further runs on this issue."


def render_capped(use: CapUse, requested_by: str) -> str:
    """A request while a cap is used up, and when it will not be."""
    return f"No job was started: {use.describe(requested_by)} is used up. {_FREE_AGAIN[use.scope]}"


def render_no_permission(login: str, repository: str, role: Role, *, helps: bool = False) -> str:
    """The one answer that somebody gets on an issue who may not do what they asked for; `helps` says that they may
    start jobs."""
    if helps:
        return f"@{login}, this takes {role.word} access to `{repository}`: a maintainer who reads it can do the same."
    return (
        f"Thanks, @{login}. Agents here are started by people with {role.word} access to `{repository}`; "
        "a maintainer who reads this can do it with `/ptq diagnose`."
    )


def render_not_configured(login: str, repository: str) -> str:
    """The one answer that a requester gets in a repository that no operator has configured."""
    return (
        f"@{login}, this App can see `{repository}`, but its operator has not set it up for agents yet. "
        f'They do so with a `[repos."{repository}"]` table in `ptq.toml`.'
    )


def render_pull_request_thread() -> str:
    """Commands on a pull request that is not ours."""
    return (
        "Commands work on issues, and on pull requests that this App has opened: please ask on the issue that this "
        "pull request is about."
    )


def render_edited() -> str:
    """A command that came into a comment by an edit."""
    return "An edited comment commands nothing, for what it approved could change. Please give it in a new comment."


def render_no_advice(preset: str) -> str:
    """A preset that lacks the advice by which it knows what to do."""
    return f"No job was started: `/ptq run {preset}` does what your advice says, and there is none behind it."


def render_presets(presets: Iterable[Preset]) -> str:
    """`/ptq run` without a preset that there is."""
    rows = [f"- `{preset.command}`: {make_plain_line(preset.goal, (), 200)}" for preset in presets]
    return "\n".join(["No job was started: `/ptq run` takes the name of a preset. There are:", "", *rows])


def render_nothing_to_simplify() -> str:
    """`/ptq simplify` where the last attempt left no edits."""
    return "The last attempt on this issue left no change, so there is nothing to simplify. `/ptq fix` asks for one."


def render_nothing_to_rebase() -> str:
    """`/ptq rebase` where no diff waits for a note or is in a pull request."""
    return (
        "No diff on this issue waits for a note, and none is in a pull request of ours, so there is nothing to rebase. "
        "`/ptq fix` asks for one, from the newest commit."
    )


def render_onto_refused(base_branch: str) -> str:
    """`/ptq rebase onto` something else than what it takes."""
    return (
        "No job was started: `onto` takes the name of a branch that is there, or the full name of a commit that is on "
        f"{show_code(base_branch, (), 200)}."
    )


def render_up_to_date(branch: str, commit: str) -> str:
    """`/ptq rebase` of a change that begins from the newest commit already."""
    return (
        f"The diff on this issue begins from `{commit[:10]}` of {show_code(branch, (), 200)} already, so there is "
        "nothing to rebase."
    )


def render_nothing_to_verify() -> str:
    """`/ptq verify` on an issue of which no script is known."""
    return (
        "Neither the issue nor an attempt on it has a script that could be run, so there is nothing to verify. "
        "`/ptq repro` has an agent write one."
    )


def render_spoken_against(reasons: Sequence[str], command: str) -> str:
    """A request for an issue that somebody else may be at work on; `reasons` are clauses of ours."""
    why = " and ".join([", ".join(reasons[:-1]), reasons[-1]] if reasons[1:] else reasons)
    return f"No job was started: {why}. If one is wanted all the same, comment `{command} --anyway`."


def render_issue_changed(number: int) -> str:
    """A request from a pull request for an issue that changed after it."""
    return f"No job was started: issue #{number} has changed since you asked. Please look at it, and ask there."


def render_label_too_late() -> str:
    """A label of which we were not told in time, on an issue that has changed since."""
    return (
        "No job was started: GitHub's word of the label never came, and this issue has changed since it was put on. "
        "Please look at the issue as it is now, then take the label off and put it on again."
    )


def render_broken_rules(fault: str) -> str:
    """A request in a repository whose own rules cannot be understood; `fault` holds words of its file."""
    why = make_plain_line(fault, (), 300)
    return f"Nothing can be asked for until `.github/ptq.toml` on the default branch is mended: {why}."


def render_paused(pause: Pause) -> str:
    """A request while nothing new is to begin."""
    return f"No job was started: {pause.describe()}. Please ask again later."


def render_pause_begun(login: str, label: str) -> str:
    """The label that pauses a repository was put on."""
    return (
        f"No new jobs begin in this repository, as @{login} asked, until the label {show_code(label, (), 50)} is off "
        "this issue. Those under way go on: `/ptq cancel` ends one."
    )


def render_pause_ended(login: str) -> str:
    """That label was taken off."""
    return f"New jobs may begin again, as @{login} asked."


def render_pause_kept(login: str, label: str, least: Role, *, put_back: bool) -> str:
    """That label was taken off by somebody who may not end a pause."""
    named = show_code(label, (), 50)
    now = f"so {named} is back on this issue" if put_back else f"put {named} on this issue and take it off to end it"
    return f"New jobs are still paused: only people with {least.word} access can end a pause, @{login}, {now}."


def render_no_results() -> str:
    """`/ptq results` on an issue on which no job has ended."""
    return "No job on this issue has ended yet, so there are no results. `/ptq status` says how things stand."


def render_again(body: str) -> str:
    """A report that is posted once more."""
    return f"The last report, once more:\n\n{body}"


def render_unknown_command(word: str, suggestion: str | None) -> str:
    """A command that does not exist."""
    meant = f" Did you mean `/ptq {suggestion}`?" if suggestion else ""
    return f"There is no command `/ptq {word}`.{meant} `/ptq help` lists them all."


def render_idle(public_url: str, last: Job | None, *, confidential: bool = False) -> str:
    """`/ptq status` while no job is active; how a `confidential` one ended is not said."""
    if last is None:
        return "No job has run on this issue yet. `/ptq help` says how to start one."
    state = link_job(public_url, last.id, "ended" if confidential else str(last.state))
    return f"No job is active. The last one, `{last.preset}` attempt {last.attempt}, {state}."


def render_nothing_to_cancel() -> str:
    """`/ptq cancel` while no job is active."""
    return "There is no active job on this issue, so nothing to cancel."


def render_cancelling(job: Job, public_url: str) -> str:
    """`/ptq cancel`, heard."""
    is_told = job.posts is Posts.ALL
    follows = "Its report follows when nothing of it is alive." if is_told else "It was a check of the operator's."
    return f"Cancelling {link_job(public_url, job.id, 'this job')}. {follows}"


def render_no_diff() -> str:
    """`/ptq pr` on a case in which no diff stands."""
    return "No diff on this issue is waiting for a note, so there is nothing to open. `/ptq fix` asks for one."


def render_stale_digest(given: str, standing: str) -> str:
    """`/ptq pr` with the digest of something else than what stands."""
    return (
        f"`{given}` is not the diff that stands now: that one is `{standing}`. "
        f"Please read the newest report and, if you agree with it, reply with `/ptq pr {standing}` and your note."
    )


def render_newer_report(standing: str) -> str:
    """`/ptq pr` without a digest while the newest report carries no diff, or came after the comment."""
    return (
        "Your comment names no digest, and the report that stood when you wrote it is not the one whose diff waits "
        f"for a note. If you mean that diff, reply with `/ptq pr {standing}` and your note."
    )


def render_report_changed(*, is_gone: bool) -> str:
    """`/ptq pr` where our report does not stand on the issue as we posted it."""
    what = "deleted on GitHub" if is_gone else "changed on GitHub after ptq-bot posted it"
    becomes = "posted again" if is_gone else "restored"
    return (
        f"The report comment was {what}, so this note was not taken. The report is being {becomes}: please read it "
        "and, if you agree with it, send your note again."
    )


def render_pull_pending() -> str:
    """A second note for the same report while the first is being carried out."""
    return "A note for this diff was accepted before yours; its draft pull request is being opened."


def render_pull_opened(number: int, approver: str, *, updated: bool = False) -> str:
    """The link from the issue to its pull request; an `updated` one was there before, with another diff."""
    done = f"Pull request #{number} now holds this diff" if updated else f"Draft pull request #{number} is open"
    return f"{done}, with @{approver}'s note first. It is yours to review and to merge."


def render_pull_exists(number: int) -> str:
    """A second note for a report whose pull request is open."""
    return f"This diff is in pull request #{number} already."


def render_pull_failed(reason: str) -> str:
    """A note of which no pull request came."""
    why = make_plain_line(reason, (), 300)
    return f"This note could not be carried out: {why}. Once that is mended, please send it again."
