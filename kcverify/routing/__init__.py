"""Which kernel answers a request: the frozen table, the split by hash, the health that moves the route, adapters.

A library for a router to embed: pure Python, without torch and without a server.
"""
