"""Matrix products, convolutions and attention in C++."""
