"""Jobs in a caller's own transaction: enqueued, or completed, with the caller's other writes.

`jobs` decides on a store that was put onto the caller's connection by `sqlite` or `postgres`;
`connections` recognises the connections of the libraries people use. Nothing here commits what the
caller did not commit.
"""
