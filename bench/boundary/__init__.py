"""What a call costs in Python: the client's, and the border's between Python and the core.

Measured by pytest-benchmark, with `make bench-boundary` alone: times, so for people, and no gate.
"""
