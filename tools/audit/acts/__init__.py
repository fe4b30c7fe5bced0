"""Gates over the observed behaviour of a candidate's process."""
