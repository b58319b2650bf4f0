"""The dashboard: pages for people, in front of the handlers of `/v1`.

It is a reader like any other client and decides nothing: every page and every action calls the
handlers of the table of routes, as the principal of its session. It has no access to the store.
"""
