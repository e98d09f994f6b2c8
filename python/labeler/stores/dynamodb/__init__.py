"""The DynamoDB store: one client for life, one call a write, and a word for whatever may go wrong.

`items` knows how a row looks there, `client` how the service is called, `errors` what an answer
means to the writer, `table` how the table should be, and `store` is the `Store` made of them.
"""

from labeler.stores.dynamodb.store import DynamoStore, open_store

__all__ = ["DynamoStore", "open_store"]
