"""The comparison of WebSocket servers: peers, tests, one cell of measurement, and the report."""
