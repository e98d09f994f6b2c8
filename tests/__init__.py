"""Tests of labeler, through its public face: see CONTRIBUTING.md for what stands where."""
