"""One file for each fault that others reported, under the number it has there."""
