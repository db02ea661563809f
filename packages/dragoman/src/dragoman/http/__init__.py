"""HTTP/1.1 server protocol for any ASGI application. Handles sockets and ASGI messages
only, no application logic.
"""
