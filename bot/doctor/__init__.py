"""`ptq-bot doctor`: looks at everything that the service depends on, and says what to do about what is not well.

It changes nothing but on machines, where it puts the machine-side program as the service would.
"""
