"""Agents' requests to models, and machines' requests to private repositories and package hosts, pass through here.

An agent that uses the gateway has no API key on its machine. Before the gateway sends a request, it reserves the
largest possible cost. Each job has an endpoint of its own. The rest of the service knows only the interface
`runner.steps.gateway`.
"""
