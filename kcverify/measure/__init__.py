"""kcverify.measure."""
