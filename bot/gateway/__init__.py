"""Agents' requests to models, and machines' requests to private repositories and package hosts, pass through here.

So no key is on a machine, and every token is counted before it is spent. Each job has an endpoint of its own. The rest
of the service knows only the interface `runner.steps.gateway`.
"""
