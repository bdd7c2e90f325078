"""Every sentence that people read in a thread, by reader: statuses, reports, replies, holds, pull requests. Pure."""
