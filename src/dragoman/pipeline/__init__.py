"""From a canonical request to batches of canonical events, for any engine. Knows no HTTP and no dialect."""
