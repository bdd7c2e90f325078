"""What people can say to the bot, who they are, and the right that each operation needs.

GitHub is asked for a person's role each time. One exception: in threads, after several refusals, GitHub is not asked
about the same person again for 1 to 30 minutes.
"""
