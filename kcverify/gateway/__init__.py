"""A reverse proxy in front of a candidate and the kernels it is measured against: routes, measures, falls back, recovers."""
