"""What the bot decides."""
