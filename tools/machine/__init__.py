"""What this computer is and can do: devices, their lock, their ceilings, the doctor."""
