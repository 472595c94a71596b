"""kcverify.prove."""
