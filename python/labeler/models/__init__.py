"""Models on the Python side: training and packaging. Serving and the repository are the core's.

Importing this package loads nothing; the modules in it need the extra `train`.
"""

__all__: list[str] = []
