"""`ptq-bot doctor`: checks everything that the service depends on, and says what to do about each problem.

It changes nothing, except on machines: it installs our program there, runs a first job, and removes that job.
"""
