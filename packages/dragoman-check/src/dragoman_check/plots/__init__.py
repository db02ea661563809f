"""Plots of measurements."""
