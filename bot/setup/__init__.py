"""`ptq-bot setup`: pages on this host that lead an operator to a working `ptq.toml`.

`answers` is what they have said so far, `steps` takes more of it and `config_text` writes it down, all pure; `notes`
keeps it between two runs; `github_app` and `trial` look at the world; `door` lets one browser in, `server` joins them.
"""
