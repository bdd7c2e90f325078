"""Plain values and the rules over them: jobs and their states, machines, environments, usage, caps, fair shares.

Everything here is pure. It knows neither the database nor how machines are reached.
"""
