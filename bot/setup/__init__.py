"""`ptq-bot setup`: pages on this host that lead an operator to a working `ptq.toml`.

Pure functions compute the answers, the next step and the file. One browser is let in, by a token from the terminal.
"""
