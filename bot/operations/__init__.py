"""What operators can do beside a running service, and what their terminal shows of it.

What people on GitHub can do, too, is in `handlers/jobs` and `handlers/holds`, and is called from here. All of it takes
a `Person` and checks their right. It speaks with the service through the database alone.
"""
