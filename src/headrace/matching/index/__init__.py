"""The index over subscriptions: how segments are planned, laid out, merged and kept."""
