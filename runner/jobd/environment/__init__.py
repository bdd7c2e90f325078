"""A job's environment: a worktree and a virtual environment on top of a shared base, made in a fraction of a second."""
