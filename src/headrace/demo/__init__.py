"""The play of ``headrace demo``: a town whose vehicles send through every door of a hub, and its listeners.

``town`` is a function of time: streets, fences, vehicles. ``fleet`` sends for the vehicles, with one client for each
protocol that takes messages. ``listeners`` receive: geofences, a check of the sequence, the services with Spark's
results, a neighbour that speaks parcels. ``job`` is the Spark job. ``play`` runs them all, and in the end ``audit``
compares what everyone got with the log.

All of them are ordinary clients of an ordinary hub.
"""
