"""Groups and their bucket on virtual time: a store that is stale, slow and lies about failures, and laws. Pure."""
