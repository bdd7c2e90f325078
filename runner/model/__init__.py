"""Plain values and the rules over them: jobs and their states, machines, environments, caps and fair shares.

Everything here is pure. It knows neither the database nor how machines are reached.
"""
