"""What happens to one job on its machine: prepare, agent, collect, verify, hold; its log, and what it used.

A step can be repeated: after a crash, the next replica goes on where the last one stopped.
"""
