"""Records exchanges with any upstream, byte for byte with their times, and replays them. Knows no dialect."""
