"""Which job runs where: slots, health of machines, refreshing bases, and cleaning up what is left over."""
