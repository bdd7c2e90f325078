"""The machine-side program: makes a job's environment, runs its agent detached, kills it, and computes its change.

It travels to a machine as one file (a zip archive that Python runs) and is called as `PYTHON -I FILE VERB`: one JSON
object on standard input, one JSON line out. Verbs that take long start a *stage* (`prepare`, `agent`, `collect`), a
process of its own that outlives the connection.

The standard library alone, Python 3.9, no root. It refuses to know who asks, and it believes nothing that an agent may
have touched: not the worktree's git folder, not its own processes, not the kind of a file.
"""
