"""What an operator or a signed-in person can do, as functions that return what happened.

The command line and the pages call them. They work beside a running service, through the database.
"""
