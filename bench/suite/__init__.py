"""The bench: a case is a folder that asks one question; its sides are compared within one run.

`case` reads a case, `servers` starts what is measured, `measure` runs the sides in turns,
`metrics` says what a run gives, `compare` judges, `show` writes it down.
"""
