"""The version, which all packages of the repository share."""

VERSION = "0.1.0"
