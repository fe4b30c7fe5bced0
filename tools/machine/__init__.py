"""This computer: its devices, their lock, their ceilings, and the doctor that lists what works."""
