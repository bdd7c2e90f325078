"""Which comments and labels start what. The router is the table of contents of this floor."""
