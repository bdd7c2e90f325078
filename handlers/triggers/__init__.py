"""Which comments and labels start what: `router.py` lists every event that the service works."""
