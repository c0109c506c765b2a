"""Owns: HTTP. One module per wire protocol, event streams, the request log, `/metrics`.
Does not own: how a token is made; it hands requests to an engine service and writes down what comes back.
Read first: exchange.py.
"""

from ninfer.server.model import ServedModel
from ninfer.server.run import serve
from ninfer.server.settings import ServerSettings

__all__ = ["ServedModel", "ServerSettings", "serve"]
