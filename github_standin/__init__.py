"""A stand-in for GitHub: stateful, strict where GitHub is strict, and backed by real git repositories.

The demo and the tests run the service against it. It knows nothing of the service.
"""

from github_standin.api.server import Exchange
from github_standin.model.faults import ApiFault, Faults, WebhookFault
from github_standin.model.limits import Limits
from github_standin.model.state import Comment, Issue, Pull, Reaction, Repository, TimelineEvent, User
from github_standin.model.webhooks import Delivery
from github_standin.standin import StandIn

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
