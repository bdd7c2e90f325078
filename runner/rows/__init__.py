"""The rows of the runner's tables, a module for each group. Every function takes its caller's transaction."""
