"""Everything the demo and the tests run against: a GitHub stand-in, an SSH server, a scripted agent."""
