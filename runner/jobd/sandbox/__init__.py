"""What a job's processes see of their machine, and how they are found and ended."""
