"""One hub process: what every door is built on, which doors open, and the upkeep behind them."""
