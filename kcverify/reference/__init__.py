"""Slow, rigorous definitions of every quantity, and the instances that attain the bounds: the oracle for replay and tests."""
