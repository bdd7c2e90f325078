"""How a job begins, how it is cancelled, what pauses new jobs, and what the end of a job means for its issue.

A job begins with preconditions, a copy of the issue as it was, and the agent's instructions (the brief).
"""
