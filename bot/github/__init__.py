"""The App's own GitHub client."""
