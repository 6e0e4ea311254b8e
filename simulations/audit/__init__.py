"""`userdp audit`: claimed guarantees under attack, in many runs or in one run with many canaries."""
