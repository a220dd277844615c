"""What commands share: options, reading and printing, exit codes."""
