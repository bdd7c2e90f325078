"""One `Database`, alike on SQLite and PostgreSQL: transactions, the schema, and its upgrades.

Only one transaction writes at a time, in all replicas together, so what it has read does not change before it commits.
Reading never waits.
"""
