"""The report: charts and tables on one page, each traced to the bench's result files."""
