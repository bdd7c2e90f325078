"""How people get into an environment by SSH, and out of it again."""
