"""The commands a person types: print and exit codes; decide nothing."""
