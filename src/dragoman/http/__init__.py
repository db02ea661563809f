"""HTTP/1.1 towards clients, beneath any ASGI application. Knows sockets and ASGI, and nothing of what is served."""
