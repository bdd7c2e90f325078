"""What operators can do at a terminal next to a running service, and what the terminal shows.

Operations that are also available on GitHub are in `handlers`, and this package calls them. A function that carries out
an operation takes a `Person` and checks their right; its wrapper for the terminal takes the `Settings`. A terminal
reaches a running service only through the database. Pages call some of these functions inside the service.
"""
