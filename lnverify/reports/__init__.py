"""How a report is shown: console, JSON file, JUnit file, GitHub annotations, and the snippet of a finding.

Rules of this folder: a writer takes a Report and gives text; it runs no subject, judges nothing and changes
nothing. What is said in words is in wording.py, so that every format says the same.
"""
