"""The one router of all events that the service works."""

from gidgethub.routing import Router

from handlers.triggers import comments, labels

ROUTER = Router(labels.router, comments.router)
