"""What ``headrace demo`` plays: a town whose vehicles speak through every door of a hub, and who listens there.

``town`` is the play itself, a function of time: streets, fences, vehicles. ``fleet`` are the vehicles' radios, one
client for each protocol that takes messages. ``listening`` are those who receive: geofences, a check of the sequence,
the services that Spark's results become, a neighbour that speaks parcels. ``job`` is the Spark job. ``play`` puts them
together and ``audit`` compares, when the play is over, what everyone got with what is in the log.

Nothing here is special to the demo's hub: all of it are ordinary clients of an ordinary one.
"""
