"""The doors of content routing: publisher, sdk, router, dispatcher, status; and the driver of a process's roles."""
