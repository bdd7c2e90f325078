"""`ptq-bot demo`: the whole story on this machine, with the stand-in, an SSH server and a scripted agent.

With `--play`, a person plays the maintainer in a browser.
"""
