"""Trees of sysfs, of machines that are not this one: recorded, or built from what is published."""
