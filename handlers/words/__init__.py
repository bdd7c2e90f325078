"""Every sentence that people read in a thread, with one file for each kind: statuses, reports, replies, pull requests.

Pure. Holds have their own sentences (`handlers.holds.hold_replies`).
"""
