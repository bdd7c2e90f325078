"""What the bot decides. `triggers.router` is the table of contents: which event starts what."""
