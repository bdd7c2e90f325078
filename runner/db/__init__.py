"""One `Database`, with the same behaviour on SQLite and PostgreSQL: transactions, the schema, and its upgrades.

Only one transaction writes at a time, across all replicas. So what it has read cannot change before it commits.
Readers never wait. Two kinds of commits are cheaper than a transaction for each row. Deliveries share commits
(`GroupCommit`). Calls to models and meters reach the disk a moment after their commit (`RelaxedCommit`).
"""
