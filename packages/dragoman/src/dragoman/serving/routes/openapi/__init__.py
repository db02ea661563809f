"""`/openapi.json`, which describes the API, and `/docs`, a page that shows it."""
