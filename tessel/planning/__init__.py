"""From a profile of layers to the best use of many devices: degrees, cuts, placement, order."""
