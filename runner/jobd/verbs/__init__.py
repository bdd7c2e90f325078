"""The requests that the program answers, and the bodies of its stages."""
