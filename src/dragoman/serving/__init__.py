"""The only I/O towards clients: Starlette routes, pure ASGI endpoints, server-sent events."""
