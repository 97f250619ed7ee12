"""What a site keeps (logs, accounting, metrics) -> a recording for `healer replay`. Nothing here acts."""
