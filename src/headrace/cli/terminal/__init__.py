"""What the commands share: their options, what they read and print, how they end."""
