"""Timing: a candidate, a baseline and copies of as many bytes, in turn, in one process.

Rules of this folder: two separate runs are never compared, for on a shared machine they differ by more than what is to
be seen; what decides is the ratio within a round, and its interval. What is timed has been verified. Nothing here
imports a framework: adapters do.
"""
