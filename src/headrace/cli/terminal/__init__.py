"""The common part of the commands: their options, what they read and print, how they end."""
