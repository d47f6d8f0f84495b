"""The transfer engine; not offered by this version."""

# Servers that look for an engine go on without one for this exception and this name only.
raise ModuleNotFoundError("mooncake-store-compat has no mooncake.engine yet", name="mooncake")
