"""What signed-in people see and do in a browser: lists, a job's page, forms, notes.

Who may do what is decided by the same code as for comments on GitHub.
"""
