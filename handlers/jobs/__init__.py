"""How a job begins, and what its end means for its issue.

A job begins with preconditions, a copy of the issue as it was, and the agent's instructions (the brief).
"""
