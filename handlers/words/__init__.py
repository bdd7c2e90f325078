"""Every sentence that people read in a thread, a file for each kind: statuses, reports, replies, pull requests.

Pure. Holds have their own sentences (`handlers.holds.hold_replies`).
"""
