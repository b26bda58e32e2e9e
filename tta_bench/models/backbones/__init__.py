"""Networks that methods adapt, behind one interface for all families of networks."""
