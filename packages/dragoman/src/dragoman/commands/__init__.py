"""The commands other than `serve`, one module each: options and files only; the
computations are elsewhere.
"""
