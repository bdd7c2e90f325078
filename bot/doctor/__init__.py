"""`ptq-bot doctor`: looks at everything that the service depends on, and says what to do about what is not well.

It changes nothing but on machines: there it puts the machine-side program as the service would, and tries a first job,
of which nothing stays.
"""
