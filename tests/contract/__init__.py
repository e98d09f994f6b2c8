"""The wire, the API, the command line, the names, the documents, the package."""
