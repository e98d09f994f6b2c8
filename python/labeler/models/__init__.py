"""Models on the Python side: training, packaging, verifying. Serving is the core's.

Importing this package loads nothing; it silences ONNX Runtime before a module of it loads that.
`folders`, `verify` and `compare` need ONNX Runtime alone, training needs the extra `train`.
"""

from labeler.runtime_library import silence

__all__: list[str] = []

silence()
