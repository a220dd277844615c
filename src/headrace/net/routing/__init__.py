"""The doors of content routing: publisher, sdk, router, dispatcher, status, and the roles behind them."""
