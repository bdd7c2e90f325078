"""Every sentence that people read in a thread, a file for each kind: statuses, reports, replies, holds, pull requests.

Pure.
"""
