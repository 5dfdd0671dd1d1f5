"""The partition search itself: candidates and prices in, the cheapest exact cover out; no device is
touched."""
