"""Messages between the processes of a server."""
