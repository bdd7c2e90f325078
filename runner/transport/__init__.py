"""How bytes reach a machine: SSH or a local process, and the client of our program there.

Whatever a machine answers is bounded and parsed here; `steps` decides what it means.
"""
