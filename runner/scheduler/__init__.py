"""Which job runs where: slots, the health of machines, refreshes of bases, and cleaning up leftovers."""
