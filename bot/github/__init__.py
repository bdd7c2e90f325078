"""The App's own GitHub client: tokens, limits, retries, typed answers.

`AppGitHub` implements the port `handlers.ports.GitHub`. Every write reserves its turn in the write budget here.
"""

from bot.github.client import AppGitHub
from bot.github.timings import Timings

__all__ = ["AppGitHub", "Timings"]
