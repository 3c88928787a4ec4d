"""The only room that speaks HTTP to a forge; knows nothing of the database."""
