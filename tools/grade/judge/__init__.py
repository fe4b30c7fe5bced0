"""The trusted process: it makes the inputs, knows the truth, orders the calls and decides."""
