"""The wire formats of the APIs: functions that check a stream or an object, and raise
`Violation` with the broken rule.

They import nothing of a server, and need no network, so that tests of a server can use
them on its responses.
"""
