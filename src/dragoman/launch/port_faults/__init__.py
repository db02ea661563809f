"""Port fault injection: ports that refuse, reset or hang connections, and the schedule of the faults."""
