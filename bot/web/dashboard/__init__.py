"""What signed-in people see and do in a browser: lists, a job's page, forms, notes.

The rules of threads hold here too, and the same code applies them.
"""
