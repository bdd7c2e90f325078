"""What operators can do beside a running service, and what their terminal shows of it.

Operations that people on GitHub also have are in `handlers`. This package calls them. A function that carries out an
operation takes a `Person` and checks their right; the functions around it, for a terminal, take the `Settings`. A
terminal speaks with a running service through the database alone. Pages call some of these functions inside the
service.
"""
