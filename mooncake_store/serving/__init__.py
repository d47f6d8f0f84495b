"""What every process serves beside its frames: HTTP for probes and scrapes, gRPC; and its ports.

Masters and store servers share it; it knows neither.
"""
