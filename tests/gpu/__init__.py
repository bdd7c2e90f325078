"""`make gpu`: one whole job on this machine's NVIDIA GPU, and one job that must not reach it."""
