"""The bot's decisions. `triggers.router` lists which event starts what."""
