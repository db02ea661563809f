"""One module a resource: the handlers of its routes, found by URL."""
