"""Background duties: each is a tick that does one bounded pass and says when it is next due."""
