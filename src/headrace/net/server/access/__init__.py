"""What access needs on disk and over time: the audit log, used tokens, challenges, and settings taken again."""
