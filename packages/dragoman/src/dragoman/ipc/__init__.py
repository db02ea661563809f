"""What the processes of a server share: messages, and files of SQLite."""
