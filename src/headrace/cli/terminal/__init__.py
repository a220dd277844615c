"""What the commands share: their options, the hub they talk to, what they print, how they end."""
