"""The engine `upstream`: other servers."""
