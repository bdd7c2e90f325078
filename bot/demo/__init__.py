"""`ptq-bot demo`: the whole story on this machine: a stand-in for GitHub, an SSH server and a scripted agent.

With `--play`, a person plays the maintainer in a browser.
"""
