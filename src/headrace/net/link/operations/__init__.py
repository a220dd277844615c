"""The operations of the link: each takes a request, and its connection answers it, now or later."""
