"""kcverify.emit."""
