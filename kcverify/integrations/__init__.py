"""Monitors inside other libraries' frames; each module needs its library and is imported by name."""
