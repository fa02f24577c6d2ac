"""Gate: whether a change made an implementation wrong, less accurate or slower, against a baseline.

Rules of this folder: what is compared was made in the same way on both sides, so settings come from the baseline; an
alarm needs evidence that noise does not give; where there is no evidence the gate says that it could not tell.
"""
