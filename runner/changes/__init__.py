"""What an agent changed, as its machine reports it. A machine may lie, so everything is checked before it is believed.

A patch that passes here says exactly what its stored change does, line for line. Pure.
"""
