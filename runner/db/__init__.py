"""One `Database`, alike on SQLite and PostgreSQL: transactions, the schema, and its upgrades.

A write transaction is the only one at a time, so what it has read does not change before it commits.
"""
