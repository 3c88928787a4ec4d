"""The story `tireless demo` tells: starts the parts, acts as a person, checks what came of it."""
