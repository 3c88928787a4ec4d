"""Pages, metrics and webhooks: reads through store.inspect, writes only through store.look and store.steer."""
