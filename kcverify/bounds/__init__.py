"""kcverify.bounds."""
