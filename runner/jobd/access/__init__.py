"""SSH access of people to a job's environment."""
