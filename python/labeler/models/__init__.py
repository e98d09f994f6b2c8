"""Models on the Python side: training, packaging, verifying. Serving is the core's.

Importing this package loads nothing. `folders`, `verify` and `compare` need ONNX Runtime alone,
training needs the extra `train`.
"""

__all__: list[str] = []
