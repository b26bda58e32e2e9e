"""What methods adapt: a network behind one interface, for each family of networks."""
