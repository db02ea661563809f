"""The commands besides `serve`, a module each: what a person asks for, and files. What they compute is elsewhere."""
