"""What GitHub keeps: repositories, issues, pull requests, Apps, rights, limits and webhooks."""
