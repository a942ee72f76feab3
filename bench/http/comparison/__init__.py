"""The comparison of HTTP servers: peers, generators, one cell of measurement, and the report."""
