"""One `Database`, with the same behaviour on SQLite and PostgreSQL: transactions, the schema, and its upgrades.

Only one transaction writes at a time, across all replicas. So what it has read cannot change before it commits.
Readers never wait.
"""
