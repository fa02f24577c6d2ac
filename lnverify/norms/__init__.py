"""Norms other than layer norm: what is right, what is admitted, the cases, and why a result is wrong.

`views` says which axes of x share a mean and a variance, `exact` evaluates the generated formulas, `bound` says how far
a right algorithm may deviate, `judge` compares, `diagnosis` names mechanisms, `cases` and `support` choose the inputs.
"""
