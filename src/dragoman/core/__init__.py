"""The vocabulary of the waist. Imports nothing of ours, does no I/O, knows no clock and no chance."""
