"""What people may say to the bot, and who may say it. Rights are asked of GitHub each time."""
