"""The router of all events that the service handles."""

from gidgethub.routing import Router

from handlers.triggers import comments, labels

ROUTER = Router(labels.router, comments.router)
