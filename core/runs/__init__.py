"""How runs are submitted, queued, started, watched and stopped."""
