"""The Durable Streams protocol over topics: ``/v1/stream/TOPIC``; and ``POST /v1/publish/TOPIC``."""
