"""The agent commands we ship: each feeds a prompt to a program, reads its structured output, writes result.json.

They stand alone: nothing of ours but this directory, nothing but the standard library.
"""
