"""The thin agent commands we ship; they import nothing of ours."""
