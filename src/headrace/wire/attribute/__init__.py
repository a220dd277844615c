"""The binary messages of the attribute family: publisher, dispatcher, router and status doors."""
