"""The program on each machine: it makes a job's environment, runs its agent detached, kills it, computes its change.

It travels as one archive and is called as `PYTHON -I FOLDER VERB`: one JSON object on standard input, one JSON line
out. It uses the standard library of Python 3.9 alone, and no root. It believes nothing that an agent may have touched:
not the worktree's git folder, not its own processes, not the kind of a file.
"""
