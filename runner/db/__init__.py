"""One `Database`, with the same behaviour on SQLite and PostgreSQL: transactions, the schema, and its upgrades.

Only one transaction writes at a time, across all replicas. Between the reads and the commit of such a transaction, no
other one can change the data. Readers never wait. Two kinds of commits are cheaper than a transaction for each row.
Deliveries share commits (`GroupCommit`). `RelaxedCommit`, which stores model calls and meters, returns before the data
is on the disk; a crash of the host can lose the last moment.
"""
