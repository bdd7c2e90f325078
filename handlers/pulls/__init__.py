"""From a maintainer's note to a draft pull request that holds exactly the diff that the report showed."""
