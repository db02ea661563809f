"""A package of a third party with an engine."""
