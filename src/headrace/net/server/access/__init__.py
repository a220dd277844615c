"""Access on disk and over time: the audit log, used tokens, challenges, and reloaded settings."""
