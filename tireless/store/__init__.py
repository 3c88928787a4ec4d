"""The only room with psycopg: free functions that take an open connection first; never talks to a forge or an agent."""
