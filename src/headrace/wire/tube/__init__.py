"""The tube: varints, frames, reassembly, and the conversation of two peers."""
