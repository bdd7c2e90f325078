"""What the operator must be told: when, and in which words. `bot.observability` sends it."""
