"""The App's own GitHub client: tokens, limits, retries, typed answers.

`AppGitHub` implements `handlers.ports.GitHub`. It knows HTTP and no handler.
"""

from bot.github.client import AppGitHub
from bot.github.timings import Timings

__all__ = ["AppGitHub", "Timings"]
