"""Runs simulated fleets offline: workloads, replays on a virtual clock, reports,
calibration and planning.

The engine that is simulated is `engines.simulator`; nothing here serves requests.
"""
