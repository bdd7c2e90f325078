"""The addresses of jobs' pages, and which jobs have none. Pure."""

from __future__ import annotations

from runner.model.job import JobRequest

PATCH_FILE = "change.patch"
"""The name of a diff that people download."""


def job_url(public_url: str, job_id: str) -> str:
    """The address of a job's page."""
    return f"{public_url}/jobs/{job_id}"


def note_url(public_url: str, job_id: str) -> str:
    """The address of the form for a note on a job's diff."""
    return f"{job_url(public_url, job_id)}/note"


def patch_file_url(public_url: str, job_id: str) -> str:
    """The address of a job's diff as a file to download."""
    return f"{job_url(public_url, job_id)}/files/{PATCH_FILE}"


def find_page_root(job: JobRequest, public_url: str, *, signs_in: bool) -> str:
    """The root of the address of the job's page; empty if it has none.

    Without sign-in nobody can prove access to a private repository, so its jobs have no pages.
    """
    return "" if job.private and not signs_in else public_url


def find_page(job: JobRequest, public_url: str, *, signs_in: bool) -> str | None:
    """The address of the job's page, if it has one."""
    root = find_page_root(job, public_url, signs_in=signs_in)
    return job_url(root, job.id) if root else None


def link_job(public_url: str, job_id: str, words: str, fragment: str = "") -> str:
    """The words as a link to a job's page, or without a link if it has none (`find_page_root`)."""
    return f"[{words}]({job_url(public_url, job_id)}{fragment})" if public_url else words
