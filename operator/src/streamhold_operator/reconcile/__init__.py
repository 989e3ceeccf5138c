"""One pass over an object: observe, plan, apply, conclude, for each kind."""
