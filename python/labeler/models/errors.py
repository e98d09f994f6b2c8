"""The one error of training, packaging and comparing models.

What a version has done wrong when it is to be loaded is `ModelInvalidError`, as the core says it.
"""

from labeler.errors import LabelerError

__all__ = ["TrainingError"]


class TrainingError(LabelerError):
    """A model can't be trained, packaged or compared; the message says why and what to do."""
