"""How bytes reach a machine: over SSH or to a local process, and the client of the program on each machine.

Answers of machines are limited in size and parsed here. `steps` decides what they mean.
"""
