"""The Responses API with stored state: create, store, continue, list and stream
responses.
"""
