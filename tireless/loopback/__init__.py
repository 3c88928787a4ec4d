"""A stateful Gitea-compatible server on a loopback port, for the demo and the tests; never for production."""
