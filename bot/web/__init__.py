"""The pages: health, status, jobs, and the live log."""
