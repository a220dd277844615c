"""The JSON API, which the dashboard uses; ``docs/dashboard.md`` describes each request."""
