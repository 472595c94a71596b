"""The demo model behind an OpenAI-compatible interface, with faults on request: for tests, examples and newcomers."""
