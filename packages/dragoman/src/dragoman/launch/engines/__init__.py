"""Dragoman's own engines, each as an installed package declares one: an `EngineSpec` in
the entry point group `dragoman.engine_specs`.

Nothing imports this package: the registry finds its specs by their entry points. A
spec's module is light, since every command loads it; its builder is imported when the
engine is chosen.
"""
