"""What people can say to the bot, who they are, and the right that each operation needs.

GitHub is asked for a person's role each time. One exception: in threads, somebody who was refused several times is not
asked about again for 1 to 30 minutes.
"""
