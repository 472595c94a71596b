"""kcverify.catalog."""
