"""The shared data model: requests, events, replies, errors. Imports no other package of
ours and does no I/O.
"""
