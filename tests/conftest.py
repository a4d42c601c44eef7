"""Settings for all tests: hypothesis without a clock, so that a slow machine fails nothing."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "uldp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("uldp")
