"""GitHub's HTTP API and git over HTTP."""
