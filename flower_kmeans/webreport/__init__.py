"""A run's report as one HTML page that needs nothing else: no script, no network, no plots extra.

``outcome`` is what a page may know of a run, ``page`` puts the sections together. Everything in
it is public or released: records never come here.
"""
