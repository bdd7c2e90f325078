"""The program on each machine: it makes a job's environment, runs its agent detached, kills it, computes its change.

It travels as one archive and is called as `PYTHON -I FOLDER VERB`: one JSON object on standard input, one JSON line
out. It uses the standard library of Python 3.9 alone, and no root. It does not trust what an agent may have changed:
the worktree's git folder, processes of the job, what kind of file lies at a path.
"""
