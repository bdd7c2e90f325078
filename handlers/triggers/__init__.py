"""Which comments and labels start what.

`labels.py` and `comments.py` register a handler for each event (`@router.register`), and `router.py` joins their
routers.
"""
