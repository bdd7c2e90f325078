"""What people can say to the bot, who they are, and the right that each operation needs.

GitHub is asked for a person's role each time.
"""
