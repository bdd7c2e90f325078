"""What the bot decides. This list is the table of contents: one router for each behaviour."""

from gidgethub.routing import Router

from handlers import comments, labels

ROUTER = Router(labels.router, comments.router)
