"""The gate: exact figures of two trees, compared, so that no regression gets in unseen.

`figures` takes them of a tree, `judge` compares them, `trees` finds the base and checks it out,
`run` is the command.
"""
