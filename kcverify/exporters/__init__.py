"""What other systems read: alert rules, analysis templates, hooks, objectives, events, annotations, telemetry."""
