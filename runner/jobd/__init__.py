"""The program on each machine: it makes a job's environment, starts and stops its agent, and computes its change.

It travels as one archive and is called as `PYTHON -I -S FOLDER VERB`: one JSON object on standard input, one JSON line
out. Two verbs differ: `converse` answers many requests, and `enter` is a person's session at a terminal. The program
uses only the standard library of Python 3.9, and needs no root. It does not trust anything that an agent may have
changed: the worktree's git folder, the job's processes, the kind of file at a path.
"""
