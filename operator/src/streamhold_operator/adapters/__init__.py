"""All input and output of the operator: Redis and the Kubernetes API."""
