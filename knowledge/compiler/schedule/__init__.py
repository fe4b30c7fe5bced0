"""What a kernel does before any target spells it: passes over a row, values kept between them, tunables."""
