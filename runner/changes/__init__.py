"""What an agent changed, as its machine reports it. A machine may lie, so everything is checked before it is used.

A patch that passes here describes exactly the change that is stored with it. Pure.
"""
