"""Where labels end: the protocol in `base`, one module a store, `registry` to find them by name."""
