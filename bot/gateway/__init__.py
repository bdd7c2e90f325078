"""Agents' requests to models, and machines' requests to private repositories and package hosts, pass through here.

An agent that uses the gateway has no API key on its machine. The gateway reserves the largest cost of a request before
it sends it. Each job has an endpoint of its own. The rest of the service knows only the interface
`runner.steps.gateway`.
"""
