"""The engine `scripted`: replies from a script or from directives."""
