"""Who is signed in, and what they may see.

It also limits how often pages ask GitHub for rights, and how many pages are rendered at the same time.
"""
