"""What people see and do in a browser who have signed in: the same that they may in threads, by the same rules."""
