"""Everything durable and everything on machines; knows nothing of GitHub."""
