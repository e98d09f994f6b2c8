"""One file for each invariant of the design, plus the tidiness and the borders of the code."""
