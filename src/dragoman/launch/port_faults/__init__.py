"""Ports that refuse, reset or hang connections: the port itself, and the schedule of its outages."""
