"""Access: how clients prove who they are, and what each may do."""
