"""A target builds, loads, times, profiles and describes kernels for one kind of device."""
