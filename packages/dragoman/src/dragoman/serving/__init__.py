"""The HTTP and WebSocket API: Starlette routing, pure ASGI endpoints, server-sent
events.
"""
