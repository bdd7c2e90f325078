"""The migrations from one version of the schema to the next. Alembic runs `env` and reads `versions`."""
