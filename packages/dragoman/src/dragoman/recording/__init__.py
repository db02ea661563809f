"""Records requests to a server with its responses, and replays them."""
