"""A stand-in for GitHub: stateful, strict where GitHub is, and backed by real git repositories.

The demo and the tests run the service against it. It refuses to know the service.
"""

from bot.demo.github.faults import ApiFault, Faults, WebhookFault
from bot.demo.github.limits import Limits
from bot.demo.github.server import Exchange
from bot.demo.github.standin import StandIn
from bot.demo.github.state import Comment, Issue, Pull, Reaction, Repository, TimelineEvent, User
from bot.demo.github.webhooks import Delivery

__all__ = [
    "ApiFault",
    "Comment",
    "Delivery",
    "Exchange",
    "Faults",
    "Issue",
    "Limits",
    "Pull",
    "Reaction",
    "Repository",
    "StandIn",
    "TimelineEvent",
    "User",
    "WebhookFault",
]
