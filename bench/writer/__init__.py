"""Measures ways to write the same labels to the same store, as processes of their own, in turns."""
