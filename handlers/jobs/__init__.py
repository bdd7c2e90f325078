"""How a job begins, and what its end means for its issue: preconditions, the frozen issue, the brief, the outcome."""
