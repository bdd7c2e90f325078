"""What an operator or a signed-in person can do, as functions that return what happened.

The command line and the pages call them. They read and write only the database, so they also work in another process
than the service.
"""
