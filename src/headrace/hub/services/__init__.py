"""Services: live objects kept as part of the state, who subscribes to them, and how they change."""
