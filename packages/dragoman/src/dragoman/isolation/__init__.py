"""Worker processes for work that a request may make unbounded: they can be killed, and
limit CPU time and memory. And daemon threads for calls that end by themselves alone.
"""
