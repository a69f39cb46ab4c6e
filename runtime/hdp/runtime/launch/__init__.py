"""The agent of a host: it meets the other hosts, starts its ranks, supervises them and reports how they ended."""
