"""Values of automatic options, each with the reason that the user reads."""
